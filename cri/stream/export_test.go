package stream

// NewIdleConn for tests.
var NewIdleConn = newIdleConn
