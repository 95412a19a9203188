"""Values: what a training is, at one boundary, with no live object and no file in it.

Start with `training.TrainingRecord`. A record is immutable, comparable bit by bit, and knows neither devices
nor disks: bytes come from a `ByteSource`, which may be memory or a stored file. Nothing here may import the
other packages of segue, open a file, or touch a module or an optimizer.
"""
