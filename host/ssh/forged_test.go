package ssh_test

import (
	"bufio"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"

	"github.com/bowline-k8s/bowline/host/ssh/sshtest"
	"github.com/bowline-k8s/bowline/internal/testutil"
)

// forge is a process that claims to belong to a connection, with a child whose name has a second
// line that looks like the stat of process $1. Both wait for the end of the input.
const forge = `exec 3<&0
sh -c 'printf "\n%d (a" "$1" >/proc/self/comm; echo named; read -r line' sh "$1" <&3 &
echo $!
wait`

// begin starts a command that lives until the end of the test, and returns its PID and output.
func begin(t *testing.T, cmd *exec.Cmd) (pid int, out *bufio.Reader) {
	t.Helper()
	in, err := cmd.StdinPipe()
	testutil.Must(t, err)
	stdout, err := cmd.StdoutPipe()
	testutil.Must(t, err)
	testutil.Must(t, cmd.Start())
	t.Cleanup(func() {
		_ = in.Close()
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	})
	return cmd.Process.Pid, bufio.NewReader(stdout)
}

// TestPurgeSparesOthers: a user of the host gives his processes the environment of a request,
// and a name that looks like a line about another process. The next driver ends the connection,
// and nothing else.
func TestPurgeSparesOthers(t *testing.T) {
	server := sshtest.Run(t)
	ctx := t.Context()
	one, two := login(t, server), login(t, server)
	p := t.TempDir() + "/lock"
	if _, err := one.Lock(ctx, p, []byte("one")); err != nil {
		t.Fatal(err)
	}
	pids, ended := forked(t, one, t.TempDir())
	data := testutil.ReadFile(t, p+".session")
	words := strings.Fields(string(data))

	bystander, _ := begin(t, exec.Command("sleep", "1000"))
	forger := exec.Command("sh", "-c", forge, "sh", fmt.Sprint(bystander))
	forger.Env = append(os.Environ(), "BOWLINE_CONNECTION="+words[3]+"."+words[4]+".")
	if os.Getuid() == 0 {
		forger.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 65534, Gid: 65534}}
	}
	forging, out := begin(t, forger)
	for range 2 { // the child's PID, and a line once it has its name
		if _, err := out.ReadString('\n'); err != nil {
			t.Fatal(err)
		}
	}

	testutil.Must(t, two.Takeover(ctx, p))
	wantDead(t, "after the takeover", pids, ended)
	if !runs(bystander) {
		t.Error("a process that has nothing to do with the connection was ended")
	}
	// If the tests run as the login user, his environment is trusted.
	if os.Getuid() == 0 && !runs(forging) {
		t.Error("another user's process was ended for its environment")
	}
}
