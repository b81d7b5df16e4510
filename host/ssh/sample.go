package ssh

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"

	"github.com/bowline-k8s/bowline/host"
	"github.com/bowline-k8s/bowline/host/budget"
	"github.com/bowline-k8s/bowline/host/internal/machine"
	"github.com/bowline-k8s/bowline/host/ssh/shell"
)

// Sample needs awk on the host.
func (h *Host) Sample(ctx context.Context, r host.SampleRequest) (host.Sampled, error) {
	return call(h, ctx, "Sample", shortDeadline, func(ctx context.Context) (host.Sampled, error) {
		hier := h.machine().hier
		full := make([]string, len(r.Trees))
		for i, tree := range r.Trees {
			var err error
			if full[i], err = h.cgroupPath(tree); err != nil {
				return host.Sampled{}, fmt.Errorf("sample %s: %w", h.name, err)
			}
		}
		networks := ""
		if r.Detail {
			networks = "yes"
		}
		ofHost, ofCgroups := machine.SampleFiles(hier, r)
		args := append([]string{sampleLines(ofHost), sampleLines(ofCgroups), machine.SampleBase(hier), networks,
			strings.Join(r.HostNetwork, " "), strconv.Itoa(len(full))}, full...)
		const what = "the counters of the host"
		var out host.Sampled
		err := h.read(ctx, "sample", what, h.whole(what, shell.Request{Script: scriptSample, Args: append(args, r.Paths...)}),
			func(stdout []byte) (err error) {
				if err = h.budget.Check(budget.Items, int64(bytes.Count(stdout, []byte("\n="))), what); err == nil {
					err = checkFields(h.budget, what, stdout)
				}
				if err == nil {
					out, err = parseSampled(stdout, hier, r, full)
				}
				return err
			})
		return out, err
	})
}

// sampleLines are files in the syntax of scripts/sample.sh.
func sampleLines(files []machine.SampleFile) string {
	lines := make([]string, len(files))
	for i, f := range files {
		words := []string{f.Code, string(f.Digest)}
		if f.Dir != "" {
			words = append(words, f.Dir)
		}
		lines[i] = strings.Join(append(append(words, f.File), f.Keys...), " ")
	}
	return strings.Join(lines, "\n")
}

// parseSampled parses the output of scripts/sample.sh. full are the trees of r on the host.
func parseSampled(data []byte, hier machine.Hierarchies, r host.SampleRequest, full []string) (host.Sampled, error) {
	v := parseFields(data)
	if code := v["awk"]; code != "" {
		return host.Sampled{}, fmt.Errorf("sample the host: %w", errNoAWK)
	}
	s := machine.NewSample(hier, r, full)
	cgroup, network, inCgroups := "", "", false
	for line := range strings.Lines(v["counters"]) {
		line = strings.TrimSuffix(line, "\n")
		if line == "" {
			continue
		}
		switch rest := line[1:]; line[0] {
		case '=':
			cgroup, inCgroups = rest, true
		case '@':
			network = rest
		case '+':
			s.Interface(network, rest)
		default:
			code, digest, _ := strings.Cut(line, " ")
			if inCgroups {
				s.Cgroup(cgroup, code, digest)
			} else {
				s.Host(code, digest)
			}
		}
	}
	out, err := s.Result()
	if err != nil {
		return host.Sampled{}, err
	}
	out.FileSystems, err = parseFileSystems(v, len(r.Paths))
	return out, err
}

var errNoAWK = errors.New("awk failed or is missing there")
