package fleet

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"k8s.io/klog/v2"

	"github.com/bowline-k8s/bowline/config"
)

// ConfigFile is the configuration file, polled while the process runs.
//
// Each look reads the whole file and compares it with the last content. That covers an edit in
// place, an editor's rename, the symbolic link that a kubelet swaps for a mounted ConfigMap or
// Secret, and a network file system, which reports no changes. inotify would have to follow each
// link on the path, and would be one more dependency.
type ConfigFile struct {
	path  string
	apply func(*config.BowlineConfiguration)

	applied []byte  // the content that the hosts run with
	known   reading // the last content applied, or reported as invalid
}

// reading is what one look at the file returned.
type reading struct {
	data []byte
	err  string // why there is no data; empty if there is
}

func (r reading) is(o reading) bool { return r.err == o.err && bytes.Equal(r.data, o.data) }

// lookPeriod is the refresh interval at the file. A change is applied when the next look
// finds the same content: until then an editor may still be writing it.
const lookPeriod = time.Second

// OpenConfig reads and applies the file for the first time.
func OpenConfig(path string, apply func(*config.BowlineConfiguration)) (*ConfigFile, error) {
	data, err := os.ReadFile(path)
	if err != nil {
		return nil, fmt.Errorf("configuration: %w", err)
	}
	c, err := config.ParseFile(path, data)
	if err != nil {
		return nil, err
	}
	apply(c)
	return &ConfigFile{path: path, apply: apply, applied: data, known: reading{data: data}}, nil
}

// Watch applies changes of the file until ctx ends. It logs a file that is invalid or missing, and
// changes nothing. A signal on now makes it look at once, and believe that one look.
func (f *ConfigFile) Watch(ctx context.Context, now <-chan os.Signal) {
	ticker := time.NewTicker(lookPeriod)
	defer ticker.Stop()
	var before *reading // the last look, if it found a change that is not applied yet
	for {
		asked := false
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		case <-now:
			asked = true
		}
		r := f.look()
		switch {
		case r.is(f.known):
			before = nil
			if asked {
				klog.FromContext(ctx).Info("Skipped the unchanged configuration file", "file", f.path)
			}
		case asked, before != nil && r.is(*before):
			before = nil
			f.known = r
			f.take(klog.FromContext(ctx))
		default:
			before = &r
		}
	}
}

func (f *ConfigFile) look() reading {
	data, err := os.ReadFile(f.path)
	if err != nil {
		return reading{err: err.Error()}
	}
	return reading{data: data}
}

// take applies f.known, or logs why not.
func (f *ConfigFile) take(log klog.Logger) {
	if f.known.err != "" {
		log.Error(errors.New(f.known.err), "Failed to read the configuration file; the previous one stays in use", "file", f.path)
		return
	}
	c, err := config.ParseFile(f.path, f.known.data)
	var invalid *config.InvalidError
	switch {
	case errors.As(err, &invalid):
		log.Error(errors.New(invalid.Sentence()), "Ignored the invalid configuration file; the previous one stays in use", "file", f.path)
	case err != nil:
		log.Error(err, "Ignored the configuration file; the previous one stays in use", "file", f.path)
	case bytes.Equal(f.known.data, f.applied):
		log.Info("Found the configuration file equal to the configuration in use again", "file", f.path)
	default:
		f.applied = f.known.data
		log.Info("Applied the changed configuration file", "file", f.path, "hosts", len(c.Hosts))
		f.apply(c)
	}
}

// ByName maps the configured hosts by their names.
func ByName(cfg *config.BowlineConfiguration) map[string]*config.Host {
	hosts := make(map[string]*config.Host, len(cfg.Hosts))
	for i := range cfg.Hosts {
		hosts[cfg.Hosts[i].Name] = &cfg.Hosts[i]
	}
	return hosts
}
