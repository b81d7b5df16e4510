package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	v1 "k8s.io/api/core/v1"

	"github.com/bowline-k8s/bowline/test/labtest"
)

// cluster is a lab with the nodes under test.
type cluster struct {
	lab   *labtest.Lab
	dir   string // holds everything that belongs to the lab
	nodes []unit
	wire  *labtest.Wire // of the node over SSH
	shim  *nodeShim     // for the node suite
}

// built is a path below the output of hack/conformance-build.sh.
func built(names ...string) string {
	return filepath.Join(append([]string{labtest.Cache(), "conformance"}, names...)...)
}

// bringUp starts the lab, loads the suite's images and starts the node.
func bringUp(ctx context.Context, o options) (c *cluster, err error) {
	images, err := findImages(built("images"))
	if err != nil {
		return nil, fmt.Errorf("%w: build the suite with hack/conformance-build.sh", err)
	}
	dir, err := os.MkdirTemp("", "bowline-conformance")
	if err != nil {
		return nil, err
	}
	c = &cluster{dir: dir}
	defer func() {
		if err != nil {
			err = errors.Join(err, c.down(o))
		}
	}()
	var flags []string
	if o.set.Runc {
		flags = []string{"--programs", filepath.Join(labtest.Cache(), "runc")}
	}
	if o.set.CRIO {
		flags = append(flags, "--runtime", "crio")
	}
	if c.lab, err = labtest.Start(ctx, filepath.Join(dir, "lab"), o.set.hosts(), flags...); err != nil {
		return c, err
	}
	for _, image := range images {
		if out, err := c.lab.Command(ctx, "load-image", image, built("images", image)).CombinedOutput(); err != nil {
			return c, fmt.Errorf("load the image %s: %w\n%s", image, err, out)
		}
	}
	for i := range o.set.hosts() {
		host := fmt.Sprintf("host%d", i+1)
		if err := c.startNode(ctx, o, host, i == o.set.hosts()-1); err != nil {
			return c, fmt.Errorf("start the node %s: %w", host, err)
		}
		if _, err := c.lab.NodeReady(ctx, host, v1.ConditionTrue, time.Minute); err != nil {
			return c, err
		}
	}
	if _, err = c.lab.ReadyPods(ctx, "kube-system", "k8s-app=kube-dns", 1, 2*time.Minute); err != nil || !o.set.Node {
		return c, err
	}
	if u, ok := c.nodes[0].(*bowlineUnit); ok {
		if err := u.remember(ctx); err != nil {
			return c, err
		}
	}
	c.shim, err = startShim(ctx, c.lab, c.nodes[0], filepath.Join(dir, "node"), o.node == columnKubelet, o.node == columnSSH)
	return c, err
}

// startNode starts the node of a host, which is also its name. last is true for the last host.
func (c *cluster) startNode(ctx context.Context, o options, host string, last bool) error {
	node, err := c.unit(ctx, o, host, last)
	if err != nil {
		return err
	}
	c.nodes = append(c.nodes, node)
	return node.Start(nil)
}

// unit describes the process of a host's node.
func (c *cluster) unit(ctx context.Context, o options, host string, last bool) (unit, error) {
	log := "node.log"
	if o.set.hosts() > 1 {
		log = host + ".log"
	}
	log = filepath.Join(o.out, log)
	if err := os.Remove(log); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	if o.node == columnKubelet {
		return newKubelet(ctx, c.lab, host, filepath.Join(c.dir, host+".yaml"), log)
	}
	u := &bowlineUnit{Bowline: &labtest.Bowline{Lab: c.lab, Host: host, Args: []string{"-v=2"}, LogPath: log}}
	if o.node == columnSSH && last {
		var err error
		if c.wire, err = c.lab.NewWire(host); err != nil {
			return nil, err
		}
		u.Wire, u.Apart = c.wire, &labtest.Apart{}
		if o.set.hosts() > 1 {
			u.extra = []string{"kubeletExposure: host"}
		}
	}
	return u, nil
}

// down removes everything that bringUp made.
func (c *cluster) down(o options) error {
	if o.keep {
		c.lab.Stay()
		fmt.Println("the lab stays in", c.lab.Dir)
		return nil
	}
	var errs []error
	for _, node := range c.nodes {
		errs = append(errs, node.Stop())
	}
	if c.shim != nil {
		c.shim.close()
	}
	if c.wire != nil {
		c.wire.Close()
	}
	if c.lab != nil {
		errs = append(errs, c.lab.Down(context.Background()))
	}
	return errors.Join(append(errs, os.RemoveAll(c.dir))...)
}

// findImages returns the images' names with their tags: the directories that hold an image.json.
func findImages(dir string) (names []string, err error) {
	for _, pattern := range []string{"*", "*/*"} {
		found, err := filepath.Glob(filepath.Join(dir, pattern, "image.json"))
		if err != nil {
			return nil, err
		}
		for _, path := range found {
			name, err := filepath.Rel(dir, filepath.Dir(path))
			if err != nil {
				return nil, err
			}
			names = append(names, name)
		}
	}
	if len(names) == 0 {
		return nil, fmt.Errorf("no images in %s", dir)
	}
	return names, nil
}

// commandLine has ginkgo run a selection with these flags; the suite's program follows, and its own
// flags after "--".
func commandLine(o options, ginkgo ...string) []string {
	focus, skip := o.selection()
	argv := append([]string{built("programs", "ginkgo"), "--no-color", "--focus=" + focus}, ginkgo...)
	if skip != "" {
		argv = append(argv, "--skip="+skip)
	}
	return argv
}

// suite runs a suite on this machine with these flags of its own.
func suite(ctx context.Context, ginkgo []string, program string, flags ...string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, ginkgo[0], append(append(ginkgo[1:], program, "--"), flags...)...)
	cmd.Env = append(os.Environ(), "KUBE_TEST_REPO_LIST="+built("repositories.yaml"),
		"PATH="+built("programs")+":"+os.Getenv("PATH"))
	return cmd
}

// ends makes a command end with this process, and stop its specs when it is interrupted.
func ends(cmd *exec.Cmd) {
	cmd.Cancel = func() error { return cmd.Process.Signal(syscall.SIGINT) }
	cmd.WaitDelay = time.Minute
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGTERM}
}

// runSpecs runs the selection. Failed specs are not an error: the report has them.
func (c *cluster) runSpecs(ctx context.Context, o options, report string) error {
	if err := os.Remove(report); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	log, err := os.Create(filepath.Join(o.out, "suite.log"))
	if err != nil {
		return err
	}
	defer log.Close()
	line := commandLine(o, fmt.Sprintf("--procs=%d", o.procs), "--timeout=6h", "--json-report="+filepath.Base(report),
		"--output-dir="+filepath.Dir(report), "--silence-skips")
	var cmd *exec.Cmd
	if o.set.Node {
		cmd = c.shim.command(ctx, line)
	} else {
		cmd = suite(ctx, line, o.set.program(),
			"--kubeconfig="+c.lab.Status.Cluster.AdminKubeconfig, "--provider=skeleton", "--kubectl-path="+built("programs", "kubectl"),
			"--dns-domain="+c.lab.Status.Cluster.Domain, "--disable-log-dump", fmt.Sprintf("--num-nodes=%d", o.set.hosts()),
			"--report-complete-ginkgo=false", "--report-dir=")
	}
	ends(cmd)
	out, err := cmd.StdoutPipe()
	if err != nil {
		return err
	}
	cmd.Stderr = cmd.Stdout
	if err := cmd.Start(); err != nil {
		return err
	}
	follow(io.TeeReader(out, log), os.Stdout)
	err = cmd.Wait()
	var exit *exec.ExitError
	if errors.As(err, &exit) && ctx.Err() == nil {
		if _, statErr := os.Stat(report); statErr == nil {
			return nil
		}
		return fmt.Errorf("the suite did not run: %w; see %s", err, log.Name())
	}
	return err
}

// follow shows the suite's progress: ginkgo prints a bullet for each spec that ended, and two lines
// for one that failed.
func follow(from io.Reader, to io.Writer) {
	began, n := time.Now(), 0
	show := func(what string) {
		fmt.Fprintf(to, "%5.0f s %4d specs ended%s\n", time.Since(began).Seconds(), n, what)
	}
	in := bufio.NewReader(from)
	var line strings.Builder
	failed := ""
	for {
		r, _, err := in.ReadRune()
		if err != nil {
			return
		}
		if r == '•' {
			if n++; n%10 == 0 {
				show("")
			}
		}
		if r != '\n' {
			if line.Len() < maxMessage {
				line.WriteRune(r)
			}
			continue
		}
		text := strings.TrimSpace(line.String())
		line.Reset()
		switch {
		case failed != "":
			show("  " + failed + " " + text)
			failed = ""
		case strings.HasPrefix(text, "•") && strings.Contains(text, "[FAILED]"):
			failed = text[strings.LastIndex(text, "•"):]
		}
	}
}

// writeLists writes the committed list of each set, without a cluster.
func writeLists(ctx context.Context, o options) error {
	for _, set := range sets {
		o.set = set
		if err := writeList(ctx, o); err != nil {
			return err
		}
	}
	return nil
}

func writeList(ctx context.Context, o options) error {
	if err := os.MkdirAll(o.out, 0o755); err != nil {
		return err
	}
	o.focus, o.skip = "", ""
	flags := []string{"--provider=skeleton"}
	if o.set.Node {
		flags = []string{"--start-services=false"}
	}
	cmd := suite(ctx, commandLine(o, "--dry-run", "--json-report=list.json", "--output-dir="+o.out), o.set.program(), flags...)
	ends(cmd)
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("list the specs: %w\n%s", err, out)
	}
	specs, err := readReport(filepath.Join(o.out, "list.json"))
	if err != nil {
		return err
	}
	var names []string
	for _, s := range specs {
		if s.State != stateSkipped {
			names = append(names, s.Name)
		}
	}
	slices.Sort(names)
	fmt.Printf("%s: %d specs\n", o.set.Name, len(names))
	return os.WriteFile(o.set.file(), []byte(strings.Join(names, "\n")+"\n"), 0o644)
}
