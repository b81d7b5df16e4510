package fleet

import (
	"net"
	"net/http"
	"slices"
	"sync"
)

const (
	// mostCallers bounds the connections of the health address, which anyone may open.
	mostCallers = 128
	// mostScrapes bounds the answers of /metrics that are made at the same time.
	mostScrapes = 4
)

// callers bounds the connections of a server. One more closes the oldest one of the address that has
// the most: a flood from one address costs callers from others nothing.
type callers struct {
	mu   sync.Mutex
	open []net.Conn // oldest first
}

// state is the ConnState of an http.Server.
func (c *callers) state(conn net.Conn, state http.ConnState) {
	switch state {
	case http.StateNew:
		if over := c.add(conn); over != nil {
			_ = over.Close()
		}
	case http.StateClosed, http.StateHijacked:
		c.remove(conn)
	}
}

func (c *callers) add(conn net.Conn) (over net.Conn) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.open = append(c.open, conn)
	if len(c.open) <= mostCallers {
		return nil
	}
	from := map[string]int{}
	most := ""
	for _, o := range c.open {
		a := addressOf(o)
		if from[a]++; from[a] > from[most] {
			most = a
		}
	}
	i := slices.IndexFunc(c.open, func(o net.Conn) bool { return addressOf(o) == most })
	over = c.open[i]
	c.open = slices.Delete(c.open, i, i+1)
	return over
}

func (c *callers) remove(conn net.Conn) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.open = slices.DeleteFunc(c.open, func(o net.Conn) bool { return o == conn })
}

func addressOf(c net.Conn) string {
	host, _, err := net.SplitHostPort(c.RemoteAddr().String())
	if err != nil {
		return c.RemoteAddr().String()
	}
	return host
}

// fewAtATime refuses requests while next answers n of them.
func fewAtATime(n int, next http.Handler) http.Handler {
	places := make(chan struct{}, n)
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		select {
		case places <- struct{}{}:
			defer func() { <-places }()
			next.ServeHTTP(w, r)
		default:
			http.Error(w, "too many requests at a time", http.StatusServiceUnavailable)
		}
	})
}
