package link

import (
	"context"
	"net"
	"sync/atomic"
)

// traffic counts the bytes of all connections of a link, on the network: below SSH, and with jump hosts
// those to the first of them.
type traffic struct{ read, written atomic.Int64 }

// counted counts the bytes of the connections that dial opens.
func (t *traffic) counted(dial dialFunc) dialFunc {
	return func(ctx context.Context, network, address string) (net.Conn, error) {
		conn, err := dial(ctx, network, address)
		if err != nil {
			return nil, err
		}
		return &countedConn{conn, t}, nil
	}
}

type countedConn struct {
	net.Conn
	*traffic
}

func (c *countedConn) Read(p []byte) (int, error) {
	n, err := c.Conn.Read(p)
	c.read.Add(int64(n))
	return n, err
}

func (c *countedConn) Write(p []byte) (int, error) {
	n, err := c.Conn.Write(p)
	c.written.Add(int64(n))
	return n, err
}
