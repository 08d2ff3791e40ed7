"""Descriptions of robots whose own ones would have to be downloaded.

Joints, motors, sensors and names are those that Playground's environments ask
for; bodies are simple shapes in a row.
"""

import itertools
import pathlib

_SIDES = tuple(
  f'{end}_{side}' for side in ('left', 'right') for end in ('front', 'hind')
)
_LEG = ('abduction', 'hip', 'knee')
_LIMB = '<geom type="capsule" size="0.02" fromto="0 0 0 0 0 0.1" contype="0"'
_LIMB += ' conaffinity="0"/>'


def arm() -> str:
  """Returns an arm of seven joints with a gripper of two fingers."""
  corners = ' '.join(
    f'{x} {y} {z}' for x, y, z in itertools.product((0, 0.02), repeat=3)
  )
  fingers = ''.join(
    f"""
    <body name="{side}_finger" pos="0 0 0.06">
      <joint name="finger_joint{k}" type="slide" axis="0 {sign} 0"
        range="0 0.04"/>
      <geom name="{side}_finger_pad" type="box" size="0.01 0.01 0.01"
        contype="0" conaffinity="3"/>
      <geom type="mesh" mesh="finger_1" contype="0" conaffinity="0"/>
    </body>"""
    for k, side, sign in ((1, 'left', 1), (2, 'right', -1))
  )
  links = f"""
    <body name="hand" pos="0 0 0.1">
      <geom name="hand_capsule" type="capsule" size="0.04 0.06" contype="0"
        conaffinity="1"/>
      <site name="gripper" pos="0 0 0.1"/>
      {fingers}
    </body>"""
  for k in reversed(range(1, 8)):
    links = f"""
    <body name="link{k}" pos="0 0 0.12">
      <joint name="joint{k}" axis="{k % 2} {1 - k % 2} 0" damping="10"
        range="-3 3"/>
      {_LIMB}{links}
    </body>"""
  motors = ''.join(
    f'<position joint="joint{k}" kp="100" ctrlrange="-3 3"/>'
    for k in range(1, 8)
  )
  return f"""
  <mujoco>
    <compiler angle="radian" autolimits="true"/>
    <default><default class="panda"/></default>
    <asset>
      <material name="off_white"/>
      <mesh name="finger_1" vertex="{corners}"/>
    </asset>
    <worldbody><body name="link0">{_LIMB}{links}</body></worldbody>
    <equality><joint joint1="finger_joint1" joint2="finger_joint2"/></equality>
    <actuator>
      {motors}
      <position joint="finger_joint1" kp="100" ctrlrange="0 0.04"/>
    </actuator>
  </mujoco>"""


def _leg(side: str) -> str:
  foot = f"""
    <geom name="foot_{side}" type="sphere" size="0.0175" pos="0 0 -0.2"/>
    <site name="foot_{side}" pos="0 0 -0.2"/>"""
  abduction, hip, knee = (
    f'<joint name="{joint}_{side}" axis="{axis}" range="-1.5 2.5"/>{_LIMB}'
    for joint, axis in zip(_LEG, ('1 0 0', '0 1 0', '0 1 0'), strict=True)
  )
  x = 0.17 if 'front' in side else -0.17
  y = 0.09 if 'left' in side else -0.09
  return f"""
    <body pos="{x} {y} 0">{abduction}
      <body>{hip}
        <body pos="0 0 -0.1">{knee}{foot}</body>
      </body>
    </body>"""


def quadruped() -> str:
  """Returns four legs of three joints each on a floor."""
  legs = ''.join(map(_leg, _SIDES))
  motors = ''.join(
    f'<position joint="{joint}_{side}" kp="35" ctrlrange="-1 2"/>'
    for side in _SIDES
    for joint in _LEG
  )
  at_imu = 'objtype="site" objname="imu"'
  pose = ' '.join(['0 0.5 1'] * 4)
  return f"""
  <mujoco>
    <compiler angle="radian" autolimits="true"/>
    <option iterations="1" ls_iterations="5"/>
    <worldbody>
      <geom name="floor" type="plane" size="0 0 0.05"/>
      <body name="torso" pos="0 0 0.3">
        <freejoint/>
        <geom type="box" size="0.2 0.1 0.05" contype="0" conaffinity="0"/>
        <site name="imu"/>
        {legs}
      </body>
    </worldbody>
    <actuator>{motors}</actuator>
    <sensor>
      <gyro site="imu" name="gyro"/>
      <velocimeter site="imu" name="local_linvel"/>
      <framezaxis {at_imu} name="upvector"/>
      <framelinvel {at_imu} name="global_linvel"/>
      <frameangvel {at_imu} name="global_angvel"/>
    </sensor>
    <keyframe>
      <key name="home" qpos="0 0 0.3 1 0 0 0 {pose}" ctrl="{pose}"/>
    </keyframe>
  </mujoco>"""


def write(folder: pathlib.Path) -> None:
  """Writes them where Playground looks for what it has downloaded."""
  for name, text in (
    ('franka_emika_panda/mjx_panda.xml', arm()),
    ('google_barkour_vb/scene_mjx.xml', quadruped()),
  ):
    file = folder / name
    file.parent.mkdir(parents=True)
    (file.parent / 'assets').mkdir()
    file.write_text(text)
