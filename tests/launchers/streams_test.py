"""Programs whose readers go away."""

import io
import os
import subprocess
import sys

import pytest

from launchers import streams


class _Failing(io.StringIO):
  def __init__(self, error):
    super().__init__()
    self.error = error

  def write(self, text):
    raise self.error

  def flush(self):
    raise self.error


@pytest.mark.parametrize(
  'error',
  [
    BrokenPipeError(32, 'Broken pipe'),
    OSError(5, 'Input/output error'),
    OSError(28, 'No space left on device'),
    ValueError('I/O operation on closed file.'),
    RuntimeError('reentrant call inside'),
  ],
)
def test_what_cannot_be_written_ends_nothing(error):
  lasting = streams.Lasting(_Failing(error))
  print('text', file=lasting, flush=True)
  # As if all of it had been written.
  assert lasting.write('text') == 4


def test_the_rest_is_as_before():
  stream = io.StringIO()
  lasting = streams.Lasting(stream)
  print('text', file=lasting)
  assert stream.getvalue() == 'text\n'
  assert not lasting.isatty()


def _run(program, stdout, **kwargs):
  return subprocess.run(
    [sys.executable, '-c', f'from launchers import streams\n{program}'],
    stdout=stdout,
    check=False,
    **kwargs,
  )


@pytest.mark.parametrize('lasting', [True, False])
def test_a_program_ends_well_though_its_reader_has_gone(lasting):
  reader, writer = os.pipe()
  os.close(reader)
  make = 'streams.make_lasting()' if lasting else ''
  told = _run(f'{make}\nprint("text")', writer, stderr=subprocess.DEVNULL)
  os.close(writer)
  assert (told.returncode == 0) == lasting


def test_letters_that_a_terminal_lacks_are_spelled_out():
  told = _run(
    'streams.make_lasting()\nprint("1 \\u00b1 2")',
    subprocess.PIPE,
    env=os.environ | {'PYTHONIOENCODING': 'ascii'},
  )
  assert (told.returncode, told.stdout) == (0, b'1 \\xb1 2\n')
