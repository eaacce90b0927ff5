"""Measures the speed of a real server and fits the simulator's step model to it.

Works through HTTP alone, against any streaming endpoint that is compatible with vLLM. Must never
start, stop or configure a server, and never write a key anywhere.
"""

from serving.calibrate.fit import Fit, Point, fit
from serving.calibrate.load import CalibrationError, Server, measure
from serving.calibrate.run import calibrate

__all__ = ["CalibrationError", "Fit", "Point", "Server", "calibrate", "fit", "measure"]
