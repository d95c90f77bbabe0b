"""The package's version, for modules that must not import the package's face."""

__version__ = "0.1.0"
