"""Importing datasets: arrays of any type become .npy files of float32 and int64.

    tiebreak data import tokens.npy -o corpus

    Task(data=load_arrays("corpus"), batch=Batch(size=8, examples=Windows(name="tokens", length=65, stride=64)), ...)

An import takes little memory and is needed only once: every task maps the files and reads the parts that it uses.
"""

from tiebreak.api.data.folder import load_arrays

__all__ = ["load_arrays"]
