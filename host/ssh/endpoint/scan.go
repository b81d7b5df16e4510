package endpoint

import (
	"context"
	"errors"
	"fmt"
	"net"
	"slices"
	"time"

	"golang.org/x/crypto/ssh"
)

// scanTimeout bounds each of the handshakes of Scan.
const scanTimeout = 10 * time.Second

var errScanned = errors.New("scanned")

// Scan returns the host keys that the server at address ("host:port") presents, one of each
// type, the preferred first. Each takes a connection by dial, which ends before any login. The
// keys are only what the server claims: someone must compare them with the host before they are
// pinned.
func Scan(ctx context.Context, address string, dial func(ctx context.Context, network, address string) (net.Conn, error)) ([]ssh.PublicKey, error) {
	var keys []ssh.PublicKey
	var offers []string // of the server, once it has sent them
	for _, keyType := range keyTypes {
		algorithms := algorithmsOf(keyType)
		if offers != nil && !slices.ContainsFunc(algorithms, func(a string) bool { return slices.Contains(offers, a) }) {
			continue
		}
		key, err := scanOne(ctx, address, algorithms, dial)
		var negotiation *ssh.AlgorithmNegotiationError
		if errors.As(err, &negotiation) {
			offers = append([]string{}, negotiation.RequestedAlgorithms...)
			continue
		}
		if err != nil {
			return nil, fmt.Errorf("scan %s: %w", address, err)
		}
		keys = append(keys, key)
	}
	if len(keys) == 0 {
		return nil, fmt.Errorf("scan %s: no supported host key type; the server offers %v", address, offers)
	}
	return keys, nil
}

func scanOne(ctx context.Context, address string, algorithms []string, dial func(ctx context.Context, network, address string) (net.Conn, error)) (ssh.PublicKey, error) {
	ctx, cancel := context.WithTimeout(ctx, scanTimeout)
	defer cancel()
	conn, err := dial(ctx, "tcp", address)
	if err != nil {
		return nil, err
	}
	defer conn.Close()
	stop := context.AfterFunc(ctx, func() { conn.Close() })
	defer stop()
	var key ssh.PublicKey
	_, _, _, err = ssh.NewClientConn(conn, address, &ssh.ClientConfig{
		User:              "scan",
		ClientVersion:     "SSH-2.0-Bowline",
		HostKeyAlgorithms: algorithms,
		// It never accepts: the connection ends once the key is known.
		HostKeyCallback: func(_ string, _ net.Addr, k ssh.PublicKey) error { key = k; return errScanned },
	})
	if key != nil && errors.Is(err, errScanned) {
		return key, nil
	}
	if ctx.Err() != nil {
		return nil, fmt.Errorf("no answer within %s: %w", scanTimeout, ctx.Err())
	}
	return nil, err
}
