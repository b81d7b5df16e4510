package testmachine

import (
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// Environment variables of the machine's first process.
const (
	envDir        = "BOWLINE_TESTMACHINE_DIR"
	envContainerd = "BOWLINE_TESTMACHINE_CONTAINERD"
)

// Main runs the machine's first process if this process is one, and then does not return. Call it
// first in TestMain.
func Main() {
	dir := os.Getenv(envDir)
	if dir == "" {
		return
	}
	if err := boot(dir, os.Getenv(envContainerd)); err != nil {
		fmt.Println(err)
		os.Exit(1)
	}
	go func() {
		// Stdin ends when our parent closes the pipe or dies.
		_, _ = io.Copy(io.Discard, os.Stdin)
		os.Exit(0)
	}()
	reap()
}

// boot mounts, starts the registry and containerd, and waits for its socket.
func boot(dir, containerd string) error {
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
		return fmt.Errorf("make mounts private: %w", err)
	}
	if err := unix.Mount("proc", "/proc", "proc", 0, ""); err != nil {
		return fmt.Errorf("mount /proc: %w", err)
	}
	// Fixed directories of containerd, its shims and the CNI library.
	for _, p := range []string{"/run", "/var/lib", "/opt"} {
		if err := unix.Mount("tmpfs", p, "tmpfs", 0, "mode=755"); err != nil {
			return fmt.Errorf("mount %s: %w", p, err)
		}
	}
	if err := loopbackUp(); err != nil {
		return fmt.Errorf("bring up the loopback device: %w", err)
	}
	if err := os.WriteFile("/proc/sys/net/ipv4/ip_forward", []byte("1"), 0o644); err != nil {
		return err
	}
	binary, err := os.ReadFile(filepath.Join(dir, "image"))
	if err != nil {
		return err
	}
	registry, err := Registry(binary, runtime.GOARCH)
	if err != nil {
		return err
	}
	l, err := net.Listen("tcp", registryAddress)
	if err != nil {
		return err
	}
	server := &http.Server{Handler: registry, ReadHeaderTimeout: time.Minute}
	go func() { _ = server.Serve(l) }()

	log, err := os.Create(filepath.Join(dir, "containerd.log"))
	if err != nil {
		return err
	}
	cmd := exec.Command(containerd, "--config", filepath.Join(dir, "containerd.toml"))
	cmd.Stdout, cmd.Stderr = log, log
	if err := cmd.Start(); err != nil {
		return fmt.Errorf("start containerd: %w", err)
	}
	go func() {
		socket := filepath.Join(dir, "cri.sock")
		for range 600 {
			if c, err := net.Dial("unix", socket); err == nil {
				_ = c.Close()
				fmt.Println("ready")
				return
			}
			<-time.After(50 * time.Millisecond)
		}
		fmt.Println("containerd does not listen")
	}()
	return nil
}

// reap reaps orphans forever, as the first process must.
func reap() {
	for {
		var status syscall.WaitStatus
		if _, err := syscall.Wait4(-1, &status, 0, nil); err == syscall.ECHILD {
			<-time.After(100 * time.Millisecond)
		}
	}
}

func loopbackUp() error {
	s, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer unix.Close(s)
	ifr, err := unix.NewIfreq("lo")
	if err != nil {
		return err
	}
	ifr.SetUint16(unix.IFF_UP | unix.IFF_RUNNING)
	return unix.IoctlIfreq(s, unix.SIOCSIFFLAGS, ifr)
}
