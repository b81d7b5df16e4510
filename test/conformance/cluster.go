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

// theHost is the name of the lab's only host and of its node.
const theHost = "host1"

// cluster is a lab with the node under test.
type cluster struct {
	lab     *labtest.Lab
	dir     string // holds everything that belongs to the lab
	bowline *labtest.Bowline
	wire    *labtest.Wire
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
	if c.lab, err = labtest.Start(ctx, filepath.Join(dir, "lab"), 1, flags...); err != nil {
		return c, err
	}
	for _, image := range images {
		if out, err := c.lab.Command(ctx, "load-image", image, built("images", image)).CombinedOutput(); err != nil {
			return c, fmt.Errorf("load the image %s: %w\n%s", image, err, out)
		}
	}
	if err := c.startNode(ctx, o); err != nil {
		return c, err
	}
	if _, err := c.lab.NodeReady(ctx, theHost, v1.ConditionTrue, time.Minute); err != nil {
		return c, err
	}
	_, err = c.lab.ReadyPods(ctx, "kube-system", "k8s-app=kube-dns", 1, 2*time.Minute)
	return c, err
}

func (c *cluster) startNode(ctx context.Context, o options) error {
	if o.node == columnKubelet {
		out, err := c.lab.Command(ctx, "kubelet", theHost).CombinedOutput()
		if err != nil {
			err = fmt.Errorf("start the kubelet: %w\n%s", err, out)
		}
		return err
	}
	c.bowline = &labtest.Bowline{Lab: c.lab, Host: theHost, Args: []string{"-v=2"}, LogPath: filepath.Join(o.out, "bowline.log")}
	if err := os.Remove(c.bowline.LogPath); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	if o.node == columnSSH {
		var err error
		if c.wire, err = c.lab.NewWire(theHost); err != nil {
			return err
		}
		c.bowline.Wire, c.bowline.Apart = c.wire, &labtest.Apart{}
	}
	return c.bowline.Start()
}

// down removes everything that bringUp made.
func (c *cluster) down(o options) error {
	if o.keep {
		c.lab.Stay()
		fmt.Println("the lab stays in", c.lab.Dir)
		return nil
	}
	var errs []error
	if c.bowline != nil && c.bowline.Running() {
		errs = append(errs, c.bowline.Stop())
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

// suite returns the command that runs the suite with these flags and ginkgo's own.
func suite(ctx context.Context, o options, ginkgo []string, flags ...string) *exec.Cmd {
	focus, skip := o.selection()
	argv := append([]string{"--no-color", "--focus=" + focus, "--skip=" + skip}, ginkgo...)
	argv = append(append(argv, built("e2e.test"), "--"), flags...)
	cmd := exec.CommandContext(ctx, built("programs", "ginkgo"), argv...)
	cmd.Cancel = func() error { return cmd.Process.Signal(syscall.SIGINT) }
	cmd.WaitDelay = time.Minute
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGTERM}
	cmd.Env = append(os.Environ(), "KUBE_TEST_REPO_LIST="+built("repositories.yaml"),
		"PATH="+built("programs")+":"+os.Getenv("PATH"))
	return cmd
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
	admin := c.lab.Status.Cluster.AdminKubeconfig
	cmd := suite(ctx, o, []string{
		fmt.Sprintf("--procs=%d", o.procs), "--timeout=3h", "--json-report=" + filepath.Base(report),
		"--output-dir=" + filepath.Dir(report), "--silence-skips",
	},
		"--kubeconfig="+admin, "--provider=skeleton", "--kubectl-path="+built("programs", "kubectl"),
		"--dns-domain="+c.lab.Status.Cluster.Domain, "--disable-log-dump", "--num-nodes=1",
		"--report-complete-ginkgo=false", "--report-dir=")
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
	cmd := suite(ctx, o, []string{"--dry-run", "--json-report=list.json", "--output-dir=" + o.out}, "--provider=skeleton")
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
