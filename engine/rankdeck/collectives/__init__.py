"""How tensors travel between devices: one file per pattern. fan_out is DataParallel's."""
