package pleg

import (
	"context"
	"strings"

	v1 "k8s.io/api/core/v1"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/bowline-k8s/bowline/pod"
)

const (
	// maxMessage is how many bytes of a termination message file are reported.
	maxMessage = 4096
	// maxLogMessage (bytes) and maxLogLines limit a message that is taken from the log.
	maxLogMessage = 2048
	maxLogLines   = 80
)

// Files reads the end of a file on the host.
type Files interface {
	ReadTail(ctx context.Context, path string, max int64) ([]byte, error)
}

// terminationMessage returns the container's termination message: the file at its
// terminationMessagePath, or the end of its log if terminationMessagePolicy is
// FallbackToLogsOnError. If neither can be read, it returns the runtime's own message.
func (g *Generator) terminationMessage(ctx context.Context, st *runtimeapi.ContainerStatus) string {
	path := st.Annotations[pod.AnnotationTerminationPath]
	for _, m := range st.Mounts {
		if path == "" || m.ContainerPath != path {
			continue
		}
		if data, err := g.cfg.Files.ReadTail(ctx, m.HostPath, maxMessage); err == nil && len(data) > 0 {
			return string(data)
		}
	}
	fallback := st.Annotations[pod.AnnotationTerminationPolicy] == string(v1.TerminationMessageFallbackToLogsOnError)
	if fallback && st.ExitCode != 0 && st.LogPath != "" {
		// Time, stream and tag take up to 45 bytes of a log line.
		if data, err := g.cfg.Files.ReadTail(ctx, st.LogPath, maxLogMessage+maxLogLines*45); err == nil {
			if text := logTail(string(data)); text != "" {
				return text
			}
		}
	}
	return st.Message
}

// logTail extracts the text of the last CRI log lines ("time stream tag text").
func logTail(data string) string {
	lines := strings.Split(strings.TrimSuffix(data, "\n"), "\n")
	if len(lines) > maxLogLines {
		lines = lines[len(lines)-maxLogLines:]
	}
	var b strings.Builder
	for _, line := range lines {
		fields := strings.SplitN(line, " ", 4)
		if len(fields) < 4 || (fields[1] != "stdout" && fields[1] != "stderr") {
			continue // the first line may be truncated
		}
		b.WriteString(fields[3])
		if !strings.HasPrefix(fields[2], "P") {
			b.WriteByte('\n')
		}
	}
	text := b.String()
	if len(text) > maxLogMessage {
		text = text[len(text)-maxLogMessage:]
	}
	return text
}
