package local

import (
	"context"
	"os"
	"path/filepath"
	"strings"

	"github.com/bowline-k8s/bowline/host"
	"github.com/bowline-k8s/bowline/host/internal/machine"
)

// busy is the error of a mount that is in use; real is its path without links.
func busy(ctx context.Context, target, real string, top *machine.MountEntry) error {
	return &host.BusyError{Target: target, Type: top.FSType, Source: top.Source, Users: usersOf(ctx, real)}
}

// usersOf are some of the processes that have something of the mount at real open, or
// run in it. Only the kernel's links are read: who follows one may wait for a server.
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
		name, _ := os.ReadFile(p + "/comm") // one that has ended meanwhile has none
		users = append(users, filepath.Base(p)+" ("+strings.TrimSpace(string(name))+")")
	}
	return users
}

func uses(process, real string) bool {
	links := []string{process + "/cwd", process + "/root", process + "/exe"}
	fds, _ := os.ReadDir(process + "/fd") // one that has ended uses nothing
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
