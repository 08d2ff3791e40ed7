"""Stateful Flax NNX networks for Brax's PPO.

`brax_nnx_plugin.networks` are the modules, `brax_nnx_plugin.ppo` trains them.
"""
