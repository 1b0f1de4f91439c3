"""The composition law: transitions, segment states, rotations."""
