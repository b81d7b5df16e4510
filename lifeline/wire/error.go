package wire

import "strconv"

// Error says what the other end of the lifeline said.
func (e Error) Error() string { return "the flow was ended by the other end: " + e.Refusal.String() }

// String is the refusal in a few words.
func (r Refusal) String() string {
	switch r {
	case Refused:
		return "connection refused"
	case Unreachable:
		return "destination unreachable"
	case Forbidden:
		return "destination not permitted"
	case Isolated:
		return "isolated by a NetworkPolicy"
	case Exhausted:
		return "too many flows or bytes"
	case Broken:
		return "connection reset"
	}
	return "refusal " + strconv.Itoa(int(r))
}
