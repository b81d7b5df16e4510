package endpoint

import (
	"encoding/binary"
	"errors"
	"io"
	"net"
	"strings"
	"testing"

	"golang.org/x/crypto/ssh"

	"github.com/bowline-k8s/bowline/internal/testutil"
)

// TestAnswersAreNotRepeated: an error in a Host's status reveals nothing about what listens at
// the endpoint, except that it is no SSH server.
func TestAnswersAreNotRepeated(t *testing.T) {
	// disconnect is a message before the key exchange: RFC 4253, 11.1.
	payload := append([]byte{1}, ssh.Marshal(struct {
		Reason         uint32
		Text, Language string
	}{2, "internal-42", ""})...)
	pad := 16 - (5+len(payload))%8
	packet := binary.BigEndian.AppendUint32(nil, uint32(1+len(payload)+pad))
	packet = append(append(append(packet, byte(pad)), payload...), make([]byte, pad)...)
	pin := line(sign(t, edKey(t)).PublicKey())
	for name, c := range map[string]struct{ answer, secret string }{
		"a web server":    {"HTTP/1.1 400 Bad Request\r\nServer: internal-42\r\n\r\n" + strings.Repeat("internal-42 ", 100), "internal-42"},
		"a mail server":   {"220 internal-42 ESMTP\r\n" + strings.Repeat("x", 1000), "internal-42"},
		"another version": {"SSH-1.5-internal-42\r\n", "internal-42"},
		"a length":        {"SSH-2.0-x\r\n\x7fABC" + strings.Repeat("x", 100), "2134983235"},
		"a last word":     {"SSH-2.0-x\r\n" + string(packet), "internal-42"},
	} {
		t.Run(name, func(t *testing.T) {
			answer := c.answer
			ln, err := net.Listen("tcp", "127.0.0.1:0")
			testutil.Must(t, err)
			defer ln.Close()
			go func() {
				c, err := ln.Accept()
				if err != nil {
					return
				}
				defer c.Close()
				io.WriteString(c, answer)
				c.(*net.TCPConn).CloseWrite()
				io.Copy(io.Discard, c)
			}()
			target, err := Resolve("ssh://root@"+ln.Addr().String()+"/run/cri.sock", Options{Credentials: Credentials{Key: pemOf(t, edKey(t), "")}, HostKeys: []string{pin}})
			testutil.Must(t, err)
			err = login(t, target)
			var unexpected *UnexpectedError
			if err == nil || !errors.As(err, &unexpected) && !errors.Is(err, io.EOF) {
				t.Fatalf("error %v", err)
			}
			if strings.Contains(err.Error(), c.secret) || strings.Contains(err.Error(), "internal") {
				t.Errorf("the error repeats the answer: %v", err)
			}
		})
	}
}
