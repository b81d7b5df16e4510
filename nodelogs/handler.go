package nodelogs

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/http"
	"path"
	"slices"
	"strconv"
	"strings"
	"time"

	"k8s.io/klog/v2"

	"github.com/bowline-k8s/bowline/host"
)

// Host is the part of host.Host that the handler needs.
type Host interface {
	Stat(ctx context.Context, path string) (host.FileInfo, error)
	List(ctx context.Context, dir string) ([]host.FileInfo, error)
	Open(ctx context.Context, path string) (host.File, error)
	Run(ctx context.Context, cmd host.Command) (host.Result, error)
	Start(ctx context.Context, args ...string) (host.Process, error)
}

// Handler serves the logs of one node. Prefix is cut from the paths of requests.
type Handler struct {
	Host Host
	// Dir is the directory of logs on the host.
	Dir, Prefix string
	// Own prints the node's own lines.
	Own func(ctx context.Context, w io.Writer, o Options) error
	// Query allows queries; a request is otherwise for a file, as for a kubelet without enableSystemLogQuery.
	Query bool
}

// ownServices are the names under which the node's own lines are found.
var ownServices = []string{"kubelet", "bowline"}

// queryTimeout bounds a query.
const queryTimeout = 30 * time.Second

func (h *Handler) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	name := strings.TrimPrefix(r.URL.Path, h.Prefix)
	if h.Query {
		q, err := Parse(r.URL.Query())
		switch {
		case errors.Is(err, ErrNotAllowed):
			http.Error(w, err.Error(), http.StatusNotAcceptable)
			return
		case err != nil:
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		case q != nil && name != "" && name != "/":
			http.Error(w, "path not allowed in query mode", http.StatusNotAcceptable)
			return
		case q != nil && len(q.Services) > 0:
			h.services(w, r, q)
			return
		case q != nil:
			name = q.Files[0]
		}
	}
	served := r.Clone(r.Context())
	served.URL.Path = path.Join("/", name)
	if strings.HasSuffix(name, "/") || name == "" {
		served.URL.Path = strings.TrimSuffix(served.URL.Path, "/") + "/"
	}
	http.FileServer(files{r.Context(), h}).ServeHTTP(w, served)
}

// services prints the lines of services: the node's own, those of the journal, and files that have the name
// of a service which the journal does not know.
func (h *Handler) services(w http.ResponseWriter, r *http.Request, q *Query) {
	ctx, cancel := context.WithTimeout(r.Context(), queryTimeout)
	defer cancel()
	w.Header().Set("Content-Type", "text/plain;charset=UTF-8")
	if err := h.print(ctx, w, q); err != nil {
		klog.FromContext(ctx).V(1).Info("Failed to answer a node log query", "services", q.Services, "err", err)
		fmt.Fprintf(w, "\nerror: %v\n", err)
	}
}

func (h *Handler) print(ctx context.Context, w io.Writer, q *Query) error {
	var units, others []string
	own := false
	known := h.units(ctx)
	for _, s := range q.Services {
		switch {
		case isOwn(s):
			own = true
		case strings.Contains(known, s+".service"):
			units = append(units, s)
		default:
			others = append(others, s)
		}
	}
	if own {
		if err := h.Own(ctx, w, q.Options); err != nil {
			return err
		}
	}
	if len(units) > 0 {
		if err := h.stream(ctx, w, q.journalctl(units)); err != nil {
			return err
		}
	}
	if len(others) > 0 && q.Options != (Options{}) {
		_, err := fmt.Fprintf(w, "\noptions present and query resolved to log files for %v\ntry without specifying options\n", others)
		return err
	}
	for _, s := range others {
		if err := h.logFile(ctx, w, s); err != nil {
			return err
		}
	}
	return nil
}

func isOwn(service string) bool {
	return slices.Contains(ownServices, strings.TrimSuffix(service, ".service"))
}

// units returns the units that the journal knows; none if the host has no journal.
func (h *Handler) units(ctx context.Context) string {
	got, err := h.Host.Run(ctx, host.Command{Args: []string{"journalctl", "--field", "_SYSTEMD_UNIT"}, Timeout: queryTimeout})
	if err != nil || got.ExitCode != 0 {
		return ""
	}
	return string(got.Stdout)
}

// stream copies what a program prints.
func (h *Handler) stream(ctx context.Context, w io.Writer, args []string) error {
	// journalctl does not read its standard input, so it does not notice that the caller has gone.
	limit := strconv.Itoa(int(queryTimeout / time.Second))
	p, err := h.Host.Start(ctx, append([]string{"timeout", "-s", "KILL", limit}, args...)...)
	if err != nil {
		return err
	}
	defer p.Close()
	stop := context.AfterFunc(ctx, func() { p.Close() })
	defer stop()
	_, err = io.Copy(w, p)
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	return err
}

// logFile copies the file that is most likely the log of a service.
func (h *Handler) logFile(ctx context.Context, w io.Writer, service string) error {
	for _, name := range []string{service, service + ".log", service + "/" + service + ".log"} {
		f, err := files{ctx, h}.Open("/" + name)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return err
		}
		info, err := f.Stat()
		if err == nil && !info.IsDir() {
			_, err = io.Copy(w, f)
			f.Close()
			return err
		}
		f.Close()
	}
	_, err := fmt.Fprintf(w, "\nlog not found for %s\n", service)
	return err
}
