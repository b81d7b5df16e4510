package main

import (
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"slices"
	"strings"
	"time"
)

// wget prints the response of a URL: wget [-q] [-S] [-T SECONDS] [-O FILE] URL
func wget(c *call) int {
	flags, args := c.flags("TO")
	if len(args) != 1 {
		return c.usage("[-q] [-S] [-T SECONDS] [-O FILE] URL")
	}
	timeout := 10 * time.Second
	if s, ok := flags['T']; ok {
		var err error
		if timeout, err = duration(s); err != nil {
			return c.fail(err)
		}
	}
	url := args[0]
	if !strings.Contains(url, "://") {
		url = "http://" + url
	}
	request, err := http.NewRequestWithContext(c.ctx, http.MethodGet, url, nil)
	if err != nil {
		return c.fail(err)
	}
	// One connection per request, so that a loop over a Service reaches all its pods.
	request.Close = true
	resp, err := (&http.Client{Timeout: timeout}).Do(request)
	if err != nil {
		return c.fail(err)
	}
	defer resp.Body.Close()
	if _, ok := flags['S']; ok {
		fmt.Fprintln(c.stderr, resp.Status)
	}
	out := c.stdout
	if file, ok := flags['O']; ok && file != "-" {
		f, err := os.Create(c.path(file))
		if err != nil {
			return c.fail(err)
		}
		defer f.Close()
		out = f
	}
	if _, err := io.Copy(out, resp.Body); err != nil {
		return c.fail(err)
	}
	if resp.StatusCode >= 400 {
		return c.fail(errors.New(resp.Status))
	}
	return 0
}

// nslookup prints the addresses of a name, the name of an address, or the
// records of a service: nslookup NAME
func nslookup(c *call) int {
	if len(c.args) != 1 {
		return c.usage("NAME|ADDRESS|_PORT._PROTOCOL.NAME")
	}
	name := c.args[0]
	resolver := &net.Resolver{PreferGo: true}
	var answers []string
	var err error
	switch {
	case net.ParseIP(name) != nil:
		answers, err = resolver.LookupAddr(c.ctx, name)
	case strings.HasPrefix(name, "_"):
		var records []*net.SRV
		_, records, err = resolver.LookupSRV(c.ctx, "", "", name)
		for _, r := range records {
			answers = append(answers, fmt.Sprintf("%s:%d", r.Target, r.Port))
		}
	default:
		answers, err = resolver.LookupHost(c.ctx, name)
	}
	if err != nil {
		return c.fail(err)
	}
	slices.Sort(answers)
	fmt.Fprintln(c.stdout, strings.Join(answers, "\n"))
	return 0
}

// nc speaks TCP: nc [-w SECONDS] HOST PORT connects and copies both ways; nc -z HOST PORT only
// connects; nc -l PORT is an echo server.
func nc(c *call) int {
	flags, args := c.flags("wl")
	if port, ok := flags['l']; ok {
		return echoServer(c, port)
	}
	if len(args) != 2 {
		return c.usage("[-z] [-w SECONDS] HOST PORT | -l PORT")
	}
	timeout := 10 * time.Second
	if s, ok := flags['w']; ok {
		var err error
		if timeout, err = duration(s); err != nil {
			return c.fail(err)
		}
	}
	dialer := net.Dialer{Timeout: timeout}
	conn, err := dialer.DialContext(c.ctx, "tcp", net.JoinHostPort(args[0], args[1]))
	if err != nil {
		return c.fail(err)
	}
	defer conn.Close()
	if _, ok := flags['z']; ok {
		return 0
	}
	go func() {
		_, _ = io.Copy(conn, c.stdin)
		if tcp, ok := conn.(*net.TCPConn); ok {
			_ = tcp.CloseWrite()
		}
	}()
	if _, err := io.Copy(c.stdout, conn); err != nil {
		return c.fail(err)
	}
	return 0
}

func echoServer(c *call, port string) int {
	var config net.ListenConfig
	listener, err := config.Listen(c.ctx, "tcp", ":"+port)
	if err != nil {
		return c.fail(err)
	}
	go func() {
		<-c.ctx.Done()
		listener.Close()
	}()
	for {
		conn, err := listener.Accept()
		if err != nil {
			return c.fail(err)
		}
		go func() {
			defer conn.Close()
			_, _ = io.Copy(conn, conn)
		}()
	}
}
