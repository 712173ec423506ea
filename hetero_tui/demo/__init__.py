"""The demo's machines: real SSH servers on loopback; what breaks them; a guardian that cleans up however they end."""
