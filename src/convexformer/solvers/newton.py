from .proximal import minimise
