package hostcheck

import (
	"context"
	"errors"
	"io/fs"
	"path"
	"slices"
	"strings"
	"time"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/bowline-k8s/bowline/host"
	"github.com/bowline-k8s/bowline/syncloop/owner"
)

func (e *examination) facts(ctx context.Context) (f host.Facts, err error) {
	err = e.ask(ctx, func(ctx context.Context) (err error) {
		f, err = e.machine.Facts(ctx)
		return err
	})
	return f, err
}

func (e *examination) cgroups(ctx context.Context) {
	facts, err := e.facts(ctx)
	if err != nil {
		e.add(unknown(Cgroups, err))
		return
	}
	file := "/proc/cgroups"
	if facts.CgroupVersion == 2 {
		file = "/sys/fs/cgroup/cgroup.controllers"
	}
	data, err := e.read(ctx, file)
	if err != nil {
		e.add(unknown(Cgroups, err))
		return
	}
	driver, reported := e.cgroupDriver(ctx)
	e.add(checkCgroups(facts.CgroupVersion, parseControllers(facts.CgroupVersion, string(data)), driver, reported))
}

// cgroupDriver is the driver that the runtime reports, or that its configuration suggests.
func (e *examination) cgroupDriver(ctx context.Context) (driver string, reported bool) {
	if e.runtime == nil {
		return "", false
	}
	var reply *runtimeapi.RuntimeConfigResponse
	err := e.ask(ctx, func(ctx context.Context) (err error) {
		reply, err = e.runtime.RuntimeConfig(ctx)
		return err
	})
	switch {
	case err == nil && reply.GetLinux().GetCgroupDriver() == runtimeapi.CgroupDriver_SYSTEMD:
		return "systemd", true
	case err != nil && systemdInConfig.MatchString(e.config): // the runtime is too old to report it
		return "systemd", false
	}
	return "cgroupfs", err == nil
}

func (e *examination) clock(ctx context.Context) {
	if e.local {
		return
	}
	var offset, uncertainty time.Duration
	err := e.ask(ctx, func(ctx context.Context) (err error) {
		offset, uncertainty, err = e.machine.ClockOffset(ctx)
		return err
	})
	if err != nil {
		e.add(unknown(Clock, err))
		return
	}
	e.add(checkClock(offset, uncertainty))
}

func (e *examination) disks(ctx context.Context) {
	have := []string{e.disk(ctx, e.RootDir, "below "+e.RootDir, "free disk space, or set rootDirectory to a directory of a larger file system", nil)}
	if e.runtime == nil {
		return
	}
	var images *runtimeapi.ImageFsInfoResponse
	err := e.ask(ctx, func(ctx context.Context) (err error) {
		images, err = e.runtime.ImageFsInfo(ctx)
		return err
	})
	if err != nil {
		e.add(unknown(Disk, err))
		return
	}
	for _, f := range images.GetImageFilesystems() {
		if dir := f.GetFsId().GetMountpoint(); path.IsAbs(dir) {
			have = append(have, e.disk(ctx, dir, "images in "+dir, "remove unused images:\ncrictl rmi --prune", have))
		}
	}
}

// disk adds the line of the file system of dir, or of its nearest existing parent, unless the file
// system is in have already. It returns the mount point.
func (e *examination) disk(ctx context.Context, dir, what, fix string, have []string) string {
	for dir != "/" && e.gone == nil {
		if _, err := e.run(ctx, "test", "-e", dir); err == nil {
			break
		}
		dir = path.Dir(dir)
	}
	df := func(unit string) (usage, error) {
		out, err := e.run(ctx, "df", "-P", unit, dir)
		if err != nil {
			return usage{}, err
		}
		return parseDF(out)
	}
	space, err := df("-k")
	if err != nil {
		e.add(unknown(Disk, err))
		return ""
	}
	if slices.Contains(have, space.mount) {
		return space.mount
	}
	var inodes *usage
	if u, err := df("-i"); err == nil { // busybox may not support -i
		inodes = &u
	}
	e.add(checkDisk(what, space, inodes, fix))
	return space.mount
}

func (e *examination) kernel(ctx context.Context) {
	values := map[string]string{}
	for _, s := range sysctls {
		data, err := e.read(ctx, s.path())
		switch {
		case err == nil:
			values[s.name] = strings.TrimSpace(string(data))
		case !errors.Is(err, fs.ErrNotExist):
			e.add(unknown(Sysctls, err))
		}
	}
	e.sysctls = values
	e.add(checkSysctls(values)...)
	facts, err := e.facts(ctx)
	if err != nil {
		e.add(unknown(Swap, err))
		return
	}
	e.add(checkSwap(facts.SwapBytes, e.AllowSwap), checkSELinux(facts.SELinux, facts.SELinuxEnforcing, parseSELinux(e.config)))
}

func (e *examination) mounts(ctx context.Context) {
	data, err := e.read(ctx, "/proc/self/mountinfo")
	var p propagation
	if err == nil {
		p, err = parsePropagation(string(data), e.RootDir)
	}
	if err != nil {
		e.add(unknown(Propagation, err))
		return
	}
	e.add(checkPropagation(e.RootDir, p))
}

func (e *examination) drivers(ctx context.Context) {
	locks := owner.LockPaths(e.RootDir, owner.RunDir, e.Socket)
	d := drivers{blind: !e.root, filePath: owner.FilePath(e.RootDir), holders: map[string][]byte{}}
	out, err := e.run(ctx, append([]string{"sh", "-c", scriptDrivers, "sh"}, locks...)...)
	if err != nil {
		e.add(unknown(Driver, err))
		return
	}
	d.kubelet, d.held = parseDrivers(out)
	for p := range d.held {
		d.holders[p], _ = e.read(ctx, p) // the holder's identity stays unknown if the file cannot be read
	}
	if d.file, err = e.read(ctx, d.filePath); err != nil && !errors.Is(err, fs.ErrNotExist) {
		e.add(unknown(Driver, err))
		return
	}
	if e.runtime != nil {
		err := e.ask(ctx, func(ctx context.Context) error {
			all, err := e.runtime.ListPodSandbox(ctx, nil)
			d.sandboxes = owner.Sandboxes(all)
			return err
		})
		if err != nil {
			e.add(unknown(Driver, err))
			return
		}
	}
	e.add(checkDrivers(d, locks, e.Managed, e.Witnesses)...)
}
