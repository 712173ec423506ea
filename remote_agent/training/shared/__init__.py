"""Modules that several of the engine's processes use: messages, flat buffers, calls through Ray, schedules."""
