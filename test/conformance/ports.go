package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
)

// http1 returns a configuration whose transport speaks HTTP/1.1, so that exec and attach can upgrade
// their connections.
func http1(c *rest.Config) *rest.Config {
	c = rest.CopyConfig(c)
	c.NextProtos = []string{"http/1.1"}
	c.Timeout = 0
	return c
}

// listenIn listens in the network namespace of a process. The socket keeps its namespace when the
// thread has gone back to its own.
func listenIn(pid int, address string) (net.Listener, error) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	own, err := os.Open("/proc/thread-self/ns/net")
	if err != nil {
		return nil, err
	}
	defer own.Close()
	namespace, err := os.Open(fmt.Sprintf("/proc/%d/ns/net", pid))
	if err != nil {
		return nil, err
	}
	defer namespace.Close()
	if err := unix.Setns(int(namespace.Fd()), unix.CLONE_NEWNET); err != nil {
		return nil, err
	}
	listener, err := net.Listen("tcp4", address)
	if back := unix.Setns(int(own.Fd()), unix.CLONE_NEWNET); back != nil {
		panic(back) // this thread would run other goroutines in the host's network
	}
	return listener, err
}

// withReadOnlyPort makes /configz name the port that the shim serves: the suite takes the address of
// /stats/summary from there.
func withReadOnlyPort(resp *http.Response) error {
	if !strings.HasSuffix(resp.Request.URL.Path, "/proxy/configz") || resp.StatusCode != http.StatusOK {
		return nil
	}
	var configz struct {
		KubeletConfig map[string]any `json:"kubeletconfig"`
	}
	err := json.NewDecoder(resp.Body).Decode(&configz)
	_ = resp.Body.Close()
	if err != nil {
		return err
	}
	host, port, _ := net.SplitHostPort(readOnlyAddress)
	configz.KubeletConfig["address"] = host
	configz.KubeletConfig["readOnlyPort"], _ = strconv.Atoi(port)
	body, err := json.Marshal(configz)
	if err != nil {
		return err
	}
	resp.Body, resp.ContentLength = io.NopCloser(bytes.NewReader(body)), int64(len(body))
	resp.Header.Set("Content-Length", strconv.Itoa(len(body)))
	return nil
}

// nodeAPI passes a request on to the node's API through the API server, which authenticates itself
// there.
func (s *nodeShim) nodeAPI(w http.ResponseWriter, r *http.Request) {
	request, err := http.NewRequestWithContext(r.Context(), r.Method, s.lab.REST.Host+"/api/v1/nodes/"+s.host.Name+"/proxy"+r.URL.RequestURI(), r.Body)
	if err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	request.Header = r.Header.Clone()
	resp, err := s.api.Do(request)
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadGateway)
		return
	}
	defer resp.Body.Close()
	for key, values := range resp.Header {
		w.Header()[key] = values
	}
	w.WriteHeader(resp.StatusCode)
	_, _ = io.Copy(w, resp.Body) // the client has gone
}

// healthz answers as the kubelet's port 10248 does; without a process no one listens there.
func (s *nodeShim) healthz(w http.ResponseWriter, r *http.Request) {
	if !s.unit.Running() {
		panic(http.ErrAbortHandler)
	}
	r.URL.Path = "/healthz"
	s.nodeAPI(w, r)
}

// listen listens on an address in the host, until close.
func (s *nodeShim) listen(address string) (net.Listener, error) {
	listener, err := listenIn(s.host.PID, address)
	if err != nil {
		return nil, fmt.Errorf("listen on %s of %s: %w", address, s.host.Name, err)
	}
	s.ports = append(s.ports, listener)
	return listener, nil
}

// passOn passes connections on to the node's API, wherever the Node says that it is.
func (s *nodeShim) passOn(from net.Listener) {
	for {
		c, err := from.Accept()
		if err != nil {
			return
		}
		go func() {
			defer c.Close()
			ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
			defer cancel()
			to, err := s.dialNode(ctx)
			if err != nil {
				fmt.Fprintf(os.Stderr, "dial the API of %s: %v\n", s.host.Name, err)
				return
			}
			defer to.Close()
			go func() {
				_, _ = io.Copy(to, c)
				_ = to.Close()
			}()
			_, _ = io.Copy(c, to)
		}()
	}
}

// dialNode connects to the node's API.
func (s *nodeShim) dialNode(ctx context.Context) (net.Conn, error) {
	node, err := s.lab.Client.CoreV1().Nodes().Get(ctx, s.host.Name, metav1.GetOptions{})
	if err != nil {
		return nil, err
	}
	i := slices.IndexFunc(node.Status.Addresses, func(a v1.NodeAddress) bool { return a.Type == v1.NodeInternalIP })
	if i < 0 {
		return nil, errors.New("the Node has no InternalIP")
	}
	var d net.Dialer
	port := strconv.Itoa(int(node.Status.DaemonEndpoints.KubeletEndpoint.Port))
	return d.DialContext(ctx, "tcp", net.JoinHostPort(node.Status.Addresses[i].Address, port))
}
