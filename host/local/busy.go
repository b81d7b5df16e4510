package local

import (
	"context"
	"os"
	"path/filepath"
	"strings"

	"github.com/moby/sys/mountinfo"

	"github.com/bowline-k8s/bowline/host"
	"github.com/bowline-k8s/bowline/host/internal/machine"
)

// busy returns the error for a mount that is in use; real is its path without links.
func busy(ctx context.Context, target, real string, top *mountinfo.Info) error {
	return &host.BusyError{Target: target, Type: top.FSType, Source: top.Source, Users: usersOf(ctx, real)}
}

// usersOf returns some of the processes that have a file below real open, or run in it. It only
// reads the kernel's links: to follow one may block on a file server.
func usersOf(ctx context.Context, real string) []string {
	processes, err := filepath.Glob("/proc/[0-9]*")
	if err != nil {
		return nil
	}
	var users []string
	for _, p := range processes {
		if ctx.Err() != nil || len(users) == machine.MaxBusyUsers {
			break
		}
		if !uses(p, real) {
			continue
		}
		name, _ := os.ReadFile(p + "/comm") // empty if the process has ended
		users = append(users, filepath.Base(p)+" ("+strings.TrimSpace(string(name))+")")
	}
	return users
}

func uses(process, real string) bool {
	links := []string{process + "/cwd", process + "/root", process + "/exe"}
	fds, _ := os.ReadDir(process + "/fd") // empty if the process has ended
	for _, fd := range fds {
		links = append(links, process+"/fd/"+fd.Name())
	}
	for _, link := range links {
		if to, err := os.Readlink(link); err == nil && machine.Below(real, to) {
			return true
		}
	}
	return false
}
