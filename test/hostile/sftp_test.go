package hostile

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"maps"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"

	"github.com/bowline-k8s/bowline/host/ssh/sshtest"
	"github.com/bowline-k8s/bowline/internal/testutil"
	"github.com/bowline-k8s/bowline/test/labtest"
)

// lieSFTP is the argument with which sshd runs this program as its SFTP server. The next one is the
// file with the name of the lie to tell.
const lieSFTP = "lie-sftp"

func TestMain(m *testing.M) {
	if len(os.Args) == 3 && os.Args[1] == lieSFTP {
		if err := serveSFTP(os.Args[2]); err != nil {
			fmt.Fprintln(os.Stderr, err)
		}
		return
	}
	os.Exit(m.Run())
}

// serveSFTP is true except in what it reads from a file, and records each lie that it tells.
func serveSFTP(file string) error {
	content := bytes.Repeat([]byte("2026-01-01T00:00:00.000000000Z stdout F invented\n"), 2000)
	return sshtest.LieSFTP(os.Stdin, os.Stdout, content, func(request byte) sshtest.SFTPLie {
		name, err := os.ReadFile(file)
		if request != sshtest.SFTPRead || err != nil {
			return nil
		}
		lie := sshtest.SFTPLies[string(name)]
		if lie != nil {
			err = os.WriteFile(claimFile(file), name, 0o644)
		}
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
		}
		return lie
	})
}

func claimFile(file string) string { return file + ".claim" }

// TestOneHostsFilesLie checks the same with an SFTP server that lies when a log is read.
func TestOneHostsFilesLie(t *testing.T) {
	r := need(t)
	file := filepath.Join(r.fakes.Lab.Dir, "sftp-lie")
	address := r.secondSSHD(t, file)
	var rounds []round
	for names := range slices.Chunk(slices.Sorted(maps.Keys(sshtest.SFTPLies)), 6) {
		rounds = append(rounds, round{"files", func() { r.filesLie(t, file, address, names) }, func() {}})
	}
	r.whilePodsStart(t, rounds)
}

// filesLie reads a log with each of the lies. It does not matter what the reader gets. None of the lies
// exceeds a budget.
func (r *rig) filesLie(t *testing.T, file, address string, names []string) {
	t.Helper()
	before := r.remember(t)
	r.sshd.turn(to("tcp", address))
	resident := "resident-" + r.bad.Name
	for _, name := range names {
		testutil.Must(t, os.WriteFile(file+".next", []byte(name), 0o644))
		testutil.Must(t, os.Rename(file+".next", file))
		var said error
		if err := labtest.Until(t.Context(), patience, "a log is read", func(ctx context.Context) error {
			_, said = r.fakes.Lab.Client.CoreV1().Pods(r.namespace).GetLogs(resident, &v1.PodLogOptions{}).DoRaw(ctx)
			if claimed, err := os.ReadFile(claimFile(file)); err != nil || string(claimed) != name {
				return fmt.Errorf("the lie did not come: the last is %q, %v; the log: %v", claimed, err, said)
			}
			return nil
		}); err != nil {
			t.Fatalf("%s: %v\n%s", name, err, r.bowline.LogTail(4000))
		}
		t.Logf("%s: %v", name, said)
		r.onlyRefused(t, name, before)
	}
	r.sshd.turn(to("tcp", r.bad.Wire.Address()))
	if err := labtest.Until(t.Context(), patience, "the host is managed again", r.managedAgain); err != nil {
		t.Fatalf("%v\n%s", err, r.bowline.LogTail(4000))
	}
	r.onlyRefused(t, "the files", before)
}

// secondSSHD starts another sshd on the bad machine, like its own but with the SFTP server that lies,
// and returns its address.
func (r *rig) secondSSHD(t *testing.T, file string) string {
	t.Helper()
	own, err := os.Executable()
	testutil.Must(t, err)
	// The lab's directory has the same path on the machine.
	program, config := filepath.Join(r.fakes.Lab.Dir, "sftp-server"), filepath.Join(r.fakes.Lab.Dir, "sshd_config")
	testutil.Must(t, os.WriteFile(program, testutil.ReadFile(t, own), 0o755))
	text := string(testutil.ReadFile(t, filepath.Join(filepath.Dir(r.bad.SSH.HostKey), "sshd_config")))
	for _, change := range [][2]string{
		{"Port 22\n", "Port 2222\n"},
		{"Subsystem sftp internal-sftp\n", fmt.Sprintf("Subsystem sftp %s %s %s\n", program, lieSFTP, file)},
	} {
		if strings.Count(text, change[0]) != 1 {
			t.Fatalf("the machine's sshd_config has no line %q:\n%s", change[0], text)
		}
		text = strings.Replace(text, change[0], change[1], 1)
	}
	testutil.Must(t, os.WriteFile(config, []byte(text), 0o644))
	cmd := r.fakes.Lab.Exec(context.Background(), r.bad.Name, "/usr/sbin/sshd", "-D", "-e", "-f", config)
	stderr, err := cmd.StderrPipe()
	testutil.Must(t, err)
	testutil.Must(t, cmd.Start())
	up, ended := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(ended)
		var once sync.Once
		for l := bufio.NewScanner(stderr); l.Scan(); {
			if strings.HasPrefix(l.Text(), "Server listening") {
				once.Do(func() { close(up) })
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
		t.Fatal("the machine's second sshd has ended at once")
	case <-time.After(time.Minute):
		t.Fatal("the machine's second sshd does not listen")
	}
	return net.JoinHostPort(r.bad.IP, "2222")
}
