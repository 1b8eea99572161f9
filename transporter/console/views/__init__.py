"""The console's pages as frozen values, made from plain values. Pure."""
