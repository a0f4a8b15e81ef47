"""A simulated year of an app: whether its tables stay as they are while runs come and go."""
