package stream

// NewIdleConn and NewReplyConn for tests.
var (
	NewIdleConn  = newIdleConn
	NewReplyConn = newReplyConn
)
