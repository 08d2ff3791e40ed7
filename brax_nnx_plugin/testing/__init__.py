"""Laws that a stateful module must keep, for tests of one's own modules.

def test_my_layer():
  check_module(lambda rngs: MyLayer(3, rngs), sample_input=3)
"""

from brax_nnx_plugin.testing.check import check_module as check_module
