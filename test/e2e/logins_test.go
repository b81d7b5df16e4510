package e2e

import (
	"bufio"
	"context"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/bowline-k8s/bowline/internal/testutil"
	"github.com/bowline-k8s/bowline/test/labtest"
)

// door is a second sshd in the host, with its own users.
type door struct {
	address string
	dir     string // of its files, readable by every user
	key     string
	hostKey string
}

// openDoor starts the sshd. Users and sudoers exist only in the host: their files are mounted over
// those that the host shares with the machine.
func openDoor(t *testing.T, users []string, group, sudoers string) *door {
	t.Helper()
	dir := labtest.Dir(t, "bowline-door", false)
	d := &door{dir: dir, key: filepath.Join(dir, "key")}
	for _, name := range []string{"host_key", "key"} {
		makeKey(t, filepath.Join(dir, name), "")
	}
	pin := testutil.ReadFile(t, filepath.Join(dir, "host_key.pub"))
	d.hostKey = strings.TrimSpace(string(pin))
	passwd, shadow, groups := "", "", "doorkeepers:x:64200:"+group+"\n"
	for i, user := range users {
		id := 64201 + i
		passwd += fmt.Sprintf("%s:x:%d:%d::%s:/bin/sh\n", user, id, id, dir)
		shadow += user + ":*:20000:0:99999:7:::\n"
		groups += fmt.Sprintf("%s:x:%d:\n", user, id)
	}
	for file, text := range map[string]string{"/etc/passwd": passwd, "/etc/shadow": shadow, "/etc/group": groups, "/etc/sudoers": sudoers} {
		old := []byte("Defaults env_reset\nDefaults secure_path=\"/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin\"\nroot ALL=(ALL:ALL) ALL\n")
		mode := os.FileMode(0o440)
		if file != "/etc/sudoers" {
			old = testutil.ReadFile(t, file)
			info, err := os.Stat(file)
			testutil.Must(t, err)
			mode = info.Mode()
		}
		own := filepath.Join(dir, filepath.Base(file))
		testutil.Must(t, os.WriteFile(own, append(old, text...), mode))
		inHost(t, "mount", "--bind", own, file)
		t.Cleanup(func() { onHost(t, "umount", file) })
	}
	// The port is free: besides its daemons only an sshd on 22 listens in the host.
	d.address = net.JoinHostPort(lab.Host(host).IP, "2222")
	// HOME keeps the startup files of this machine's root out of the test.
	config := fmt.Sprintf("Port 2222\nListenAddress %s\nHostKey %s\nAuthorizedKeysFile %s\nPidFile %s\nPasswordAuthentication no\n"+
		"PermitRootLogin yes\nStrictModes no\nUsePAM no\nSubsystem sftp internal-sftp\nSetEnv HOME=%s\n",
		lab.Host(host).IP, filepath.Join(dir, "host_key"), filepath.Join(dir, "key.pub"), filepath.Join(dir, "sshd.pid"), dir)
	testutil.Must(t, os.WriteFile(filepath.Join(dir, "sshd_config"), []byte(config), 0o644))
	cmd := lab.Exec(context.Background(), host, "/usr/sbin/sshd", "-D", "-e", "-f", filepath.Join(dir, "sshd_config"))
	stderr, err := cmd.StderrPipe()
	testutil.Must(t, err)
	testutil.Must(t, cmd.Start())
	up, ended := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(ended)
		var once sync.Once
		for l := bufio.NewScanner(stderr); l.Scan(); {
			if strings.HasPrefix(l.Text(), "Server listening") {
				once.Do(func() { close(up) }) // it prints this again after a reload
			}
		}
	}()
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		<-ended
		_ = cmd.Wait()
	})
	select {
	case <-up:
	case <-ended:
		t.Fatal("the host's second sshd has ended at once")
	case <-time.After(time.Minute):
		t.Fatal("the host's second sshd does not listen")
	}
	return d
}

func makeKey(t *testing.T, file, passphrase string) {
	t.Helper()
	if out, err := exec.Command("ssh-keygen", "-q", "-t", "ed25519", "-N", passphrase, "-f", file).CombinedOutput(); err != nil {
		t.Fatalf("ssh-keygen: %v: %s", err, out)
	}
}

// reload makes the sshd read its configuration with one more line.
func (d *door) reload(t *testing.T, line string) {
	t.Helper()
	file := filepath.Join(d.dir, "sshd_config")
	old := testutil.ReadFile(t, file)
	testutil.Must(t, os.WriteFile(file, append(old, line+"\n"...), 0o644))
	inHost(t, "sh", "-c", `kill -HUP "$(cat "$1")"`, "sh", filepath.Join(d.dir, "sshd.pid"))
}

// config is a configuration that logs in to the host as user; more are lines of its ssh section.
func (d *door) config(t *testing.T, user string, more ...string) string {
	t.Helper()
	file := filepath.Join(d.dir, user+".yaml")
	lines := append([]string{fmt.Sprintf("endpoint: ssh://%s@%s%s", user, d.address, lab.Host(host).RuntimeSocket),
		"ssh:", fmt.Sprintf("  hostKeys: [%q]", d.hostKey)}, more...)
	testutil.Must(t, os.WriteFile(file, []byte(lab.ConfigYAML(host, lines...)), 0o644))
	return file
}

// inHost runs a command in the host.
func inHost(t *testing.T, argv ...string) string {
	t.Helper()
	out, err := labtest.Capture(lab.Exec(t.Context(), host, argv...))
	testutil.Must(t, err)
	if out.Code != 0 {
		t.Fatalf("%q in the host: exit code %d: %s%s", argv, out.Code, out.Stdout, out.Stderr)
	}
	return out.Stdout
}

// serves starts a Bowline beside the host and makes it use files, mounts and the runtime.
func serves(t *testing.T, ns, name, config string) {
	t.Helper()
	b := &labtest.Bowline{Lab: lab, Host: host, Wire: wire, Config: config, Args: []string{"-v=2"}, LogPath: bowline.LogPath}
	testutil.Must(t, b.Start())
	defer func() { testutil.Must(t, b.Stop()) }()
	create(t, ns, fmt.Sprintf(`
metadata: {name: %s}
spec:
  terminationGracePeriodSeconds: 0
  containers:
  - name: main
    image: $TOOLBOX
    command: [sh, -c, "echo from %s; exec sleep infinity"]
    volumeMounts: [{name: memory, mountPath: /memory}]
  volumes: [{name: memory, emptyDir: {medium: Memory}}]
`, name, name))
	_, err := lab.PodReady(t.Context(), ns, name, 2*time.Minute)
	if err != nil {
		t.Fatalf("%v\n%s", err, b.LogTail(3000))
	}
	until(t, "its log and its shell answer", answer(ns, name, "echo answers", "answers"))
	contains(t, "its log", logs(t, ns, name), "from "+name)
	deletePod(t, ns, name, metav1.DeleteOptions{GracePeriodSeconds: new(int64)}, patience)
}

// TestLogins: root; a user who may open the socket and use sudo; a user who may only use sudo and
// opens it through a relay; and a user who may not, who gets one sentence with the fix.
func TestLogins(t *testing.T) {
	serial(t)
	onlyRemote(t)
	if _, err := exec.LookPath("sudo"); err != nil {
		t.Skip("there is no sudo here: apt-get install sudo")
	}
	ns := namespace(t)
	d := openDoor(t, []string{"member", "sudoer", "nobody2"}, "member", "member ALL=(root) NOPASSWD: ALL\nsudoer ALL=(root) NOPASSWD: ALL\n")
	socket := lab.Host(host).RuntimeSocket
	withoutBowline(t, func() {
		key := "  identityFile: " + d.key
		t.Run("root", func(t *testing.T) { serves(t, ns, "by-root", d.config(t, "root", key)) })
		t.Run("sudo by a relay", func(t *testing.T) { serves(t, ns, "by-sudo", d.config(t, "sudoer", key)) })
		inHost(t, "chgrp", "64200", socket)
		defer inHost(t, "chgrp", "0", socket)
		t.Run("member of the group", func(t *testing.T) { serves(t, ns, "by-member", d.config(t, "member", key)) })
		t.Run("neither", func(t *testing.T) {
			refused(t, attemptHere(t, d.config(t, "nobody2", key)), "nobody2 ALL=(root) NOPASSWD: ALL", "/etc/sudoers.d/bowline")
		})
	})
	if _, err := lab.NodeReady(t.Context(), host, v1.ConditionTrue, patience); err != nil {
		t.Error(err)
	}
}

// attemptHere runs "bowline run" beside the host until it ends.
func attemptHere(t *testing.T, file string) labtest.Output {
	t.Helper()
	program, err := labtest.BuiltBowline()
	testutil.Must(t, err)
	out, err := labtest.Capture(exec.CommandContext(t.Context(), program, "run", "--config", file))
	testutil.Must(t, err)
	return out
}

// TestKeyFromSecret: the SSH key, with its passphrase, is in a Secret that an account may read, and
// nothing else. While the API server is away, a link that was cut comes back with the previous key.
func TestKeyFromSecret(t *testing.T) {
	serial(t)
	onlyRemote(t)
	ns := namespace(t)
	d := openDoor(t, nil, "", "")
	encrypted := filepath.Join(d.dir, "encrypted")
	makeKey(t, encrypted, "open sesame")
	private := testutil.ReadFile(t, encrypted)
	public := testutil.ReadFile(t, encrypted+".pub")
	testutil.Must(t, os.WriteFile(filepath.Join(d.dir, "key.pub"), public, 0o644))
	testutil.Must(t, os.Remove(encrypted))
	testutil.Must(t, os.Remove(d.key))

	_, err := lab.Client.CoreV1().Secrets(ns).Create(t.Context(), &v1.Secret{ObjectMeta: metav1.ObjectMeta{Name: "machine"}, Type: v1.SecretTypeSSHAuth,
		Data: map[string][]byte{v1.SSHAuthPrivateKey: private, "passphrase": []byte("open sesame")}}, metav1.CreateOptions{})
	testutil.Must(t, err)
	_, err = lab.Client.CoreV1().ServiceAccounts(ns).Create(t.Context(), &v1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: "keys"}}, metav1.CreateOptions{})
	testutil.Must(t, err)
	_, err = lab.Client.RbacV1().Roles(ns).Create(t.Context(), manifest[rbacv1.Role](t, ns, `
metadata: {name: keys}
rules: [{apiGroups: [""], resources: [secrets], resourceNames: [machine], verbs: [get]}]
`), metav1.CreateOptions{})
	testutil.Must(t, err)
	_, err = lab.Client.RbacV1().RoleBindings(ns).Create(t.Context(), manifest[rbacv1.RoleBinding](t, ns, `
metadata: {name: keys}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: Role, name: keys}
subjects: [{kind: ServiceAccount, name: keys, namespace: $NS}]
`), metav1.CreateOptions{})
	testutil.Must(t, err)
	_, err = lab.AccountKubeconfig(t.Context(), ns, "keys", filepath.Join(d.dir, "keys.kubeconfig"))
	testutil.Must(t, err)

	through, err := labtest.NewWire(d.address)
	testutil.Must(t, err)
	defer through.Close()
	d.address = through.Address()
	// The kubeconfig's path is relative to the configuration's.
	config := d.config(t, "root", fmt.Sprintf("  secret: {namespace: %s, name: machine, kubeconfig: keys.kubeconfig}", ns))
	withoutBowline(t, func() {
		serves(t, ns, "by-secret", config)
		b := &labtest.Bowline{Lab: lab, Host: host, Wire: through, Config: config, Args: []string{"-v=2"}, LogPath: bowline.LogPath}
		testutil.Must(t, b.Start())
		defer func() { testutil.Must(t, b.Stop()) }()
		until(t, "the link is up", wantCondition("LinkUp", v1.ConditionTrue))
		create(t, ns, "metadata: {name: lives}\nspec:\n  containers: [{name: main, image: $TOOLBOX, command: [sleep, infinity]}]\n")
		before := ready(t, ns, "lives")
		testutil.Must(t, lab.StopProcess(t.Context(), "", "kube-apiserver"))
		connection := lockSession(t)
		through.Cut()
		through.Restore()
		until(t, "another connection holds the machine, by the key of before", func(context.Context) error {
			data, err := os.ReadFile(filepath.Join(lab.Host(host).Root, ownerLock+".session"))
			if err == nil && (strings.Contains(string(data), " "+connection.pid+" ") || len(strings.Fields(string(data))) != 5) {
				err = fmt.Errorf("the session is recorded as %q", data)
			}
			return err
		})
		testutil.Must(t, lab.StartProcess(t.Context(), "", "kube-apiserver"))
		until(t, "the API server is back", func(ctx context.Context) error {
			_, err := lab.Client.CoreV1().Pods(ns).Get(ctx, "lives", metav1.GetOptions{})
			return err
		})
		same(t, before, ready(t, ns, "lives"))
	})
	// The account may read nothing else.
	if out, err := lab.Kubectl(t.Context(), "--as=system:serviceaccount:"+ns+":keys", "auth", "can-i", "list", "secrets", "-n", ns); err != nil || out.Code == 0 {
		t.Errorf("the account may list secrets: %s, %v", out.Stdout, err)
	}
}
