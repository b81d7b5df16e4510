package main

import (
	"bytes"
	"crypto/ed25519"
	"strings"
	"testing"

	"golang.org/x/crypto/ssh"

	"github.com/bowline-k8s/bowline/internal/testutil"
)

// The keys are shown before the question, and only a yes trusts them.
func TestConfigureAsks(t *testing.T) {
	public, _, err := ed25519.GenerateKey(nil)
	testutil.Must(t, err)
	key, err := ssh.NewPublicKey(public)
	testutil.Must(t, err)
	for answer, trusted := range map[string]bool{"yes\n": true, "no\n": false, "": false} {
		var out bytes.Buffer
		p := newPerson(nil, &out, false)
		p.answers(strings.NewReader(answer))
		err := p.trusts(t.Context(), "10.0.0.7:22", []ssh.PublicKey{key})
		keys, question := strings.Index(out.String(), ssh.FingerprintSHA256(key)), strings.Index(out.String(), "Are you sure you want to continue connecting?")
		if (err == nil) != trusted || keys < 0 || question < keys || err != nil && !strings.Contains(err.Error(), "nothing was created") {
			t.Errorf("%q: %v, printed\n%s", answer, err, out.String())
		}
	}
}
