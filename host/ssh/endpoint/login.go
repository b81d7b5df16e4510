package endpoint

import (
	"context"
	"fmt"
	"net"
	"time"

	"golang.org/x/crypto/ssh"
)

// loginTime bounds one login, after the TCP connection.
const loginTime = 15 * time.Second

// Login logs in to t over a connection by dial. It returns a *HostKeyError, an *AuthError or an
// *UnexpectedError like Client.Explain.
func (t *Target) Login(ctx context.Context, dial func(ctx context.Context, network, address string) (net.Conn, error)) (*ssh.Client, error) {
	auth, err := t.Client(ctx)
	if err != nil {
		return nil, err
	}
	defer auth.Close()
	conn, err := dial(ctx, "tcp", t.Address)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, loginTime)
	defer cancel()
	stop := context.AfterFunc(ctx, func() { conn.Close() })
	c, channels, requests, err := ssh.NewClientConn(conn, t.HostKeyName, auth.Config)
	if !stop() {
		if err == nil {
			c.Close()
		}
		return nil, fmt.Errorf("login to %s: no answer within %s", t.Address, loginTime)
	}
	if err != nil {
		conn.Close()
		return nil, auth.Explain(err)
	}
	return ssh.NewClient(c, channels, requests), nil
}
