// Command image builds Bowline's container image from scratch, for each architecture and without
// Docker. The image holds nothing but the static program. The same commit and the same Go version
// give the same bytes.
package main

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/google/go-containerregistry/pkg/authn"
	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/remote"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	if err := run(ctx, os.Args[1:]); err != nil {
		if !errors.Is(err, flag.ErrHelp) {
			fmt.Fprintln(os.Stderr, "image:", err)
		}
		os.Exit(1)
	}
}

func run(ctx context.Context, args []string) error {
	flags := flag.NewFlagSet("image", flag.ContinueOnError)
	source := flags.String("root", ".", "the checkout")
	out := flags.String("out", "bin/image", "where the images go")
	version := flags.String("version", "dev", "what bowline --version says")
	architectures := flags.String("architectures", "amd64,arm64", "with commas between")
	push := flags.String("push", "", "a reference (registry.example/bowline:v1) that the image is pushed to as well, as docker login has it")
	if err := flags.Parse(args); err != nil {
		return err
	}
	r, err := releaseOf(ctx, *source, *version)
	if err != nil {
		return err
	}
	ref, err := name.NewTag(cmp.Or(*push, "bowline:"+tag(*version)))
	if err != nil {
		return err
	}
	var images []v1.Image
	for architecture := range strings.SplitSeq(*architectures, ",") {
		program, err := compile(ctx, *source, r, architecture)
		if err != nil {
			return err
		}
		img, err := image(r, architecture, program)
		if err != nil {
			return err
		}
		images = append(images, img)
	}
	digest, err := write(*out, ref, images)
	if err != nil {
		return err
	}
	fmt.Printf("%s@%s\n", ref, digest)
	if *push == "" {
		return nil
	}
	all, err := index(images)
	if err != nil {
		return err
	}
	return remote.WriteIndex(ref, all, remote.WithContext(ctx), remote.WithAuthFromKeychain(authn.DefaultKeychain))
}

// tag turns a version into a valid image tag.
func tag(version string) string {
	return strings.Map(func(c rune) rune {
		if c == '+' || c == '/' || c == ':' {
			return '-'
		}
		return c
	}, version)
}

// releaseOf asks git for the commit. Without git, SOURCE_DATE_EPOCH gives the time.
func releaseOf(ctx context.Context, source, version string) (release, error) {
	r := release{version: version}
	said, err := output(ctx, source, nil, "git", "log", "-1", "--format=%H %ct")
	commit, seconds, _ := strings.Cut(strings.TrimSpace(string(said)), " ")
	if err == nil {
		r.revision = commit
	}
	if epoch := os.Getenv("SOURCE_DATE_EPOCH"); epoch != "" {
		seconds, err = epoch, nil
	}
	if err != nil {
		return r, fmt.Errorf("the commit's time: %w; without git, SOURCE_DATE_EPOCH says it", err)
	}
	at, err := strconv.ParseInt(seconds, 10, 64)
	if err != nil {
		return r, fmt.Errorf("the commit's time: %w", err)
	}
	r.created = time.Unix(at, 0).UTC()
	return r, nil
}

// compile builds the program for an architecture. It overrides every environment variable that
// influences the Go build, because they would change the bytes.
func compile(ctx context.Context, source string, r release, architecture string) ([]byte, error) {
	dir, err := os.MkdirTemp("", "bowline-image-")
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(dir)
	program := filepath.Join(dir, "bowline")
	env := []string{"GOOS=linux", "GOARCH=" + architecture, "CGO_ENABLED=0", "GOFLAGS=", "GOAMD64=v1", "GOARM64=v8.0", "GOEXPERIMENT=", "GOWORK=off"}
	if _, err := output(ctx, source, env, "go", "build", "-trimpath", "-buildvcs=false",
		"-ldflags", "-s -w -buildid= -X github.com/bowline-k8s/bowline/version.Version="+r.version+" -X github.com/bowline-k8s/bowline/version.Commit="+r.revision, "-o", program, "./cmd/bowline"); err != nil {
		return nil, fmt.Errorf("build for %s: %w", architecture, err)
	}
	return os.ReadFile(program)
}

func output(ctx context.Context, dir string, env []string, args ...string) ([]byte, error) {
	var complaint bytes.Buffer
	c := exec.CommandContext(ctx, args[0], args[1:]...)
	c.Dir, c.Env, c.Stderr = dir, append(os.Environ(), env...), &complaint
	said, err := c.Output()
	if err != nil {
		return nil, fmt.Errorf("%s: %w: %s", strings.Join(args[:2], " "), err, strings.TrimSpace(complaint.String()))
	}
	return said, nil
}
