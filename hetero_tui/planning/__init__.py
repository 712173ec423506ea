"""Pure decisions: from facts to a plan and its reasons. No I/O, no clock, no state."""
