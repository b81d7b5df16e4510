package labtest

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
)

// Apart isolates a Bowline that manages a remote host from this machine: it runs as an ordinary
// user without any capability, in its own mount, UTS and network namespaces. It reaches only the
// API server, the wire and Ports. At the paths that it uses on its host, its view of this machine
// has a canary tree that it could write to.
type Apart struct {
	// Ports are further ports of the API server's address that it can reach.
	Ports []string

	address string
}

// Address is the address of the last process that was started; the API server reaches it there.
func (a *Apart) Address() string { return a.address }

// apartUser is the UID of the ordinary user.
const apartUser = 64738

// canaries are files at paths that belong to the remote host.
var canaries = []string{
	"/var/lib/kubelet/canary", "/var/lib/kubelet/pods/0/volumes/canary", "/var/lib/kubelet/bowline/canary",
	"/var/log/pods/canary", "/var/log/containers/canary",
	"/run/containerd/containerd.sock", "/run/bowline/canary", "/etc/cni/net.d/canary", "/etc/bowline/canary",
}

const canaryText = "this machine is not the remote host\n"

// apartScript prepares the namespaces, and runs the command once it gets a line on its standard
// input. $1: the user; $2: the canaries; then the command.
const apartScript = `set -e
user=$1 canaries=$2
shift 2
mount --make-rprivate /
hostname apart
mkdir -p /tmp/.apart
mount -t tmpfs -o mode=755 tmpfs /tmp/.apart
mkdir /tmp/.apart/etc
for file in passwd group nsswitch.conf hosts resolv.conf localtime; do
	[ ! -e /etc/$file ] || cp -L /etc/$file /tmp/.apart/etc
done
for dir in /var/lib /var/log /run; do mount -t tmpfs -o mode=755 tmpfs $dir; done
mount --bind /tmp/.apart/etc /etc
umount -l /tmp/.apart
for file in $canaries; do
	mkdir -p "${file%/*}"
	printf 'this machine is not the remote host\n' >"$file"
done
chown -R "$user:$user" /var/lib /var/log /run /etc
ip link set lo up
read -r go
exec 0</dev/null setpriv --pdeathsig KILL --reuid "$user" --regid "$user" --clear-groups --no-new-privs \
	--bounding-set=-all --inh-caps=-all -- "$@"
`

// command returns the process before it has a network; connect gives it one.
func (a *Apart) command(ctx context.Context, env []string, argv ...string) *exec.Cmd {
	args := append([]string{"-c", apartScript, "sh", strconv.Itoa(apartUser), strings.Join(canaries, " ")}, argv...)
	cmd := exec.CommandContext(ctx, "/bin/sh", args...)
	cmd.Env = append(env, "HOME=/nonexistent")
	cmd.SysProcAttr = &syscall.SysProcAttr{
		Cloneflags: syscall.CLONE_NEWNS | syscall.CLONE_NEWNET | syscall.CLONE_NEWUTS,
		Pdeathsig:  syscall.SIGKILL,
	}
	return cmd
}

// apartAddress counts the isolated processes of all labs of this test process.
var apartAddress atomic.Int32

// connect gives the process pid an address on the lab's bridge, lets it reach the API server and
// the wire, and tells it to begin. All of this ends with the process.
func (a *Apart) connect(l *Lab, wire *Wire, pid int, begin io.WriteCloser) error {
	defer begin.Close()
	api, err := url.Parse(l.Status.Cluster.APIURL)
	if err != nil {
		return err
	}
	gateway := api.Hostname()
	number := 203 + int(apartAddress.Add(1)-1)%50
	a.address = gateway[:strings.LastIndexByte(gateway, '.')+1] + strconv.Itoa(number)
	link := fmt.Sprintf("bowlab%da%d", l.Status.Index, number)
	_, port, _ := strings.Cut(wire.Address(), ":")
	inside := []string{"nsenter", "-t", strconv.Itoa(pid), "-n", "--"}
	in := func(line string) []string { return append(inside[:len(inside):len(inside)], strings.Fields(line)...) }
	reach := func(port string) []string {
		return in("iptables -w -A OUTPUT -p tcp -d " + gateway + " --dport " + port + " -j ACCEPT")
	}
	commands := [][]string{
		strings.Fields(fmt.Sprintf("ip link add %s type veth peer name eth0 netns %d", link, pid)),
		strings.Fields(fmt.Sprintf("ip link set %s master bowlab%d up", link, l.Status.Index)),
		in("ip addr add " + a.address + "/24 dev eth0"),
		in("ip link set eth0 up"),
		in("iptables -w -A OUTPUT -o lo -j ACCEPT"),
		in("iptables -w -A OUTPUT -m conntrack --ctstate ESTABLISHED -j ACCEPT"),
		reach(api.Port()), reach(port),
	}
	for _, p := range a.Ports {
		commands = append(commands, reach(p))
	}
	for _, command := range append(commands, in("iptables -w -A OUTPUT -j REJECT")) {
		if out, err := exec.Command(command[0], command[1:]...).CombinedOutput(); err != nil {
			return fmt.Errorf("set a process apart: %s: %w\n%s", strings.Join(command, " "), err, out)
		}
	}
	_, err = io.WriteString(begin, "go\n")
	return err
}

// CheckCanaries reports what the process pid has changed in the canary tree.
func CheckCanaries(pid int) error {
	root := fmt.Sprintf("/proc/%d/root", pid)
	want := map[string]bool{}
	var wrong []error
	for _, c := range canaries {
		want[c] = true
		if text, err := os.ReadFile(root + c); err != nil || string(text) != canaryText {
			wrong = append(wrong, fmt.Errorf("the canary %s is %q, %v", c, text, err))
		}
	}
	for _, dir := range []string{"/var/lib", "/var/log", "/run", "/etc/cni", "/etc/bowline"} {
		err := filepath.WalkDir(root+dir, func(path string, d fs.DirEntry, err error) error {
			if p := strings.TrimPrefix(path, root); err == nil && !d.IsDir() && !want[p] {
				wrong = append(wrong, fmt.Errorf("%s has come to be beside the canaries", p))
			}
			return err
		})
		wrong = append(wrong, err)
	}
	return errors.Join(wrong...)
}

var pathWord = regexp.MustCompile(`/[^\s"'{},\[\]]+`)

// grant lets the ordinary user read file and, if it is a text, the files that it names: a
// configuration and the files that belong to it. It changes only files below the temporary
// directory, which belong to labs and tests.
func (a *Apart) grant(file string, depth int) error {
	temporary := filepath.Clean(os.TempDir())
	if !strings.HasPrefix(file, temporary+"/") {
		return nil
	}
	info, err := os.Lstat(file)
	if err != nil || !info.Mode().IsRegular() {
		return nil // a word that looked like a path
	}
	if err := os.Chown(file, apartUser, apartUser); err != nil {
		return err
	}
	for dir := filepath.Dir(file); len(dir) > len(temporary); dir = filepath.Dir(dir) {
		info, err := os.Stat(dir)
		if err != nil {
			return err
		}
		if err := os.Chmod(dir, info.Mode().Perm()|0o011); err != nil {
			return err
		}
	}
	text, err := os.ReadFile(file)
	if err != nil || depth == 0 || len(text) > 1<<20 || bytes.IndexByte(text, 0) >= 0 {
		return err
	}
	for _, word := range pathWord.FindAllString(string(text), -1) {
		if err := a.grant(word, depth-1); err != nil {
			return err
		}
	}
	return nil
}

// program copies the program to a place where every user may run it.
func (a *Apart) program(l *Lab, path string) (string, error) {
	data, err := os.ReadFile(path)
	if err != nil {
		return "", err
	}
	dir := filepath.Join(l.Dir, "apart")
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return "", err
	}
	// A new file each time: the previous one may be running.
	f, err := os.CreateTemp(dir, "bowline-")
	if err != nil {
		return "", err
	}
	_, err = f.Write(data)
	if err = errors.Join(err, f.Chmod(0o755), f.Close()); err != nil {
		return "", err
	}
	return f.Name(), a.grant(f.Name(), 0)
}
