package local

import (
	"fmt"
	"os"
	"os/exec"
	"strings"
	"testing"

	"github.com/bowline-k8s/bowline/test/corpus"
)

// TestAddresses reads the addresses of interfaces in a network namespace of its own. So it runs in a
// second process.
func TestAddresses(t *testing.T) {
	const inNamespace = "BOWLINE_TEST_ADDRESSES"
	ip, err := exec.LookPath("ip")
	if os.Getuid() != 0 || err != nil || exec.Command("unshare", "-n", "true").Run() != nil {
		t.Skip("no network namespace without root, unshare and ip(8)")
	}
	if os.Getenv(inNamespace) == "" {
		cmd := exec.Command("unshare", "-n", os.Args[0], "-test.run", "^TestAddresses$", "-test.count", "1", "-test.v")
		cmd.Env = append(os.Environ(), inNamespace+"=yes")
		if out, err := cmd.CombinedOutput(); err != nil || !strings.Contains(string(out), "--- PASS: TestAddresses") {
			t.Errorf("%v\n%s", err, out)
		}
		return
	}
	for _, args := range []string{
		"link set lo up",
		"link add one type veth peer name two",
		"link add three type veth peer name four",
		"address add 10.1.0.1/24 dev one",
		"address add 2001:db8::1/64 dev one nodad",
		"address add 10.1.0.2 peer 10.1.0.9 dev two",
		"address add 169.254.7.7/16 dev two",
		"address add 10.1.3.1/24 dev three",
		"link set one up",
		"link set two up",
		"route add default dev two",
	} {
		if out, err := exec.Command(ip, strings.Fields(args)...).CombinedOutput(); err != nil {
			t.Fatalf("ip %s: %v %s", args, err, out)
		}
	}
	ips, routed, err := addresses()
	if got, want := fmt.Sprint(ips, routed, err), "[10.1.0.2 10.1.0.1 2001:db8::1] true <nil>"; got != want {
		t.Errorf("got %s, want %s", got, want)
	}
}

// FuzzParseAddresses: a message that is cut off is an error or is left out.
func FuzzParseAddresses(f *testing.F) {
	f.Add([]byte("\x2c\x00\x00\x00\x14\x00\x02\x00\x00\x00\x00\x00\x00\x00\x00\x00\x02\x18\x80\x00\x02\x00\x00\x00\x08\x00\x01\x00\x0a\x01\x00\x01\x08\x00\x02\x00\x0a\x01\x00\x02"))
	corpus.Add(f)
	f.Fuzz(func(t *testing.T, rib []byte) {
		found, err := parseAddresses(rib)
		for _, ips := range found {
			if err != nil || len(ips) == 0 {
				t.Errorf("%v, %v", found, err)
			}
		}
	})
}
