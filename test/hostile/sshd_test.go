package hostile

import (
	"bytes"
	"crypto/ed25519"
	"crypto/rand"
	"io"
	"net"
	"strings"
	"sync"

	"golang.org/x/crypto/ssh"

	"github.com/bowline-k8s/bowline/host/budget"
	"github.com/bowline-k8s/bowline/host/ssh/sshtest"
)

// shellLie is one way in which an sshd makes the process spend resources.
type shellLie struct {
	name string
	// want lists the budgets one of which ends the lie. If empty, the lie exceeds none: each request
	// fails, and the host is not quarantined.
	want []budget.Kind
	// talk writes the output of a session's program until its channel is closed; sftp is set for an
	// SFTP session.
	talk func(c ssh.Channel, sftp bool)
}

// printed are the budgets of what a program prints: a reader counts lines, or all of it.
var printed = []budget.Kind{budget.LineBytes, budget.OutputBytes}

var shellLies = []shellLie{
	{"lines that never end", printed, func(c ssh.Channel, _ bool) { endless(c, bytes.Repeat([]byte("x"), 32<<10)) }},
	{"lines without end", printed[1:], func(c ssh.Channel, _ bool) { endless(c, bytes.Repeat([]byte("yes\n"), 8<<10)) }},
	{"errors that never end", printed[1:], func(c ssh.Channel, _ bool) { endless(c.Stderr(), bytes.Repeat([]byte("x"), 32<<10)) }},
	{"packets of SFTP that claim 4 GiB", printed, func(c ssh.Channel, sftp bool) {
		if sftp {
			endless(c, bytes.Repeat([]byte{0xff}, 32<<10))
		} else {
			endless(c, bytes.Repeat([]byte("x"), 32<<10))
		}
	}},
	// Only refused: a pod can make the list of mounts large, and other scripts print less.
	{"framed answers of 7 MiB of mounts", nil, func(c ssh.Channel, _ bool) {
		_ = sshtest.Lie(c, c, c.Stderr(), func(stdout io.Writer) error {
			_, err := stdout.Write(framedMounts)
			return err
		})
	}},
	// Only refused: the requests end by their deadlines.
	{"nothing at all", nil, func(c ssh.Channel, _ bool) { _, _ = io.Copy(io.Discard, c) }},
}

// framedMounts is an answer that the first script accepts as that of a machine with many mounts.
var framedMounts = append([]byte("uid 0\ncan find-printf\nmounts\n"), bytes.Repeat([]byte("0 0 0 / /a r - x y\n"), 7<<20/19)...)

func endless(w io.Writer, what []byte) {
	for {
		if _, err := w.Write(what); err != nil {
			return
		}
	}
}

// shells is an sshd that accepts any key, and lies in each session.
type shells struct {
	net.Listener
	config *ssh.ServerConfig
	key    string // line of the public key
	all    sync.WaitGroup

	mu  sync.Mutex
	lie shellLie
}

func newShells() (*shells, error) {
	_, private, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		return nil, err
	}
	signer, err := ssh.NewSignerFromKey(private)
	if err != nil {
		return nil, err
	}
	s := &shells{key: strings.TrimSpace(string(ssh.MarshalAuthorizedKey(signer.PublicKey())))}
	s.config = &ssh.ServerConfig{PublicKeyCallback: func(ssh.ConnMetadata, ssh.PublicKey) (*ssh.Permissions, error) { return nil, nil }}
	s.config.AddHostKey(signer)
	if s.Listener, err = net.Listen("tcp", "127.0.0.1:0"); err != nil {
		return nil, err
	}
	s.all.Go(func() {
		for {
			c, err := s.Accept()
			if err != nil {
				return
			}
			s.all.Go(func() { s.serve(c) })
		}
	})
	return s, nil
}

func (s *shells) tell(l shellLie) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.lie = l
}

func (s *shells) close() {
	s.Close()
	s.all.Wait()
}

func (s *shells) serve(c net.Conn) {
	defer c.Close()
	conn, channels, requests, err := ssh.NewServerConn(c, s.config)
	if err != nil {
		return
	}
	defer conn.Close()
	var all sync.WaitGroup
	all.Go(func() {
		for r := range requests {
			_ = r.Reply(true, nil) // keepalives are answered
		}
	})
	s.mu.Lock()
	lie := s.lie
	s.mu.Unlock()
	for n := range channels {
		channel, asked, err := n.Accept()
		if err != nil {
			continue
		}
		all.Go(func() { session(channel, asked, lie) })
	}
	all.Wait()
}

func session(c ssh.Channel, asked <-chan *ssh.Request, lie shellLie) {
	defer c.Close()
	var all sync.WaitGroup
	defer all.Wait()
	for r := range asked {
		_ = r.Reply(true, nil)
		if r.Type == "exec" || r.Type == "subsystem" || r.Type == "shell" {
			all.Go(func() { lie.talk(c, r.Type == "subsystem"); c.Close() })
		}
	}
}
