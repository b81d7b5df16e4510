package cri

import (
	"fmt"
	"strings"
	"sync/atomic"

	"google.golang.org/grpc/grpclog"
	"k8s.io/klog/v2"
)

// grpcLog writes gRPC's own log lines to the log. Without it they are plain text on standard error, among
// the lines of a log in JSON.
type grpcLog struct{}

// init sets the logger before anything of gRPC runs, because gRPC reads it without a lock.
func init() { grpclog.SetLoggerV2(grpcLog{}) }

// grpcLevel is the verbosity of gRPC's lines, which are about single connections and calls. The callers
// get their errors, and log them.
const grpcLevel = 5

// grpcTo is where gRPC's lines go; nil: nowhere. It is not klog's global logger, which cannot be set while
// gRPC's goroutines read it.
var grpcTo atomic.Pointer[klog.Logger]

// LogGRPC sends gRPC's own lines, of the whole process, to log if its verbosity is at least 5 now.
func LogGRPC(log klog.Logger) {
	grpcTo.Store(nil)
	if log.V(grpcLevel).Enabled() {
		grpcTo.Store(&log)
	}
}

func (grpcLog) write(text string) {
	if to := grpcTo.Load(); to != nil {
		to.V(grpcLevel).Info("Received a message of gRPC", "message", strings.TrimSuffix(text, "\n"))
	}
}

func (l grpcLog) Info(args ...any)                    { l.write(fmt.Sprint(args...)) }
func (l grpcLog) Infoln(args ...any)                  { l.write(fmt.Sprintln(args...)) }
func (l grpcLog) Infof(format string, args ...any)    { l.write(fmt.Sprintf(format, args...)) }
func (l grpcLog) Warning(args ...any)                 { l.write(fmt.Sprint(args...)) }
func (l grpcLog) Warningln(args ...any)               { l.write(fmt.Sprintln(args...)) }
func (l grpcLog) Warningf(format string, args ...any) { l.write(fmt.Sprintf(format, args...)) }
func (l grpcLog) Error(args ...any)                   { l.write(fmt.Sprint(args...)) }
func (l grpcLog) Errorln(args ...any)                 { l.write(fmt.Sprintln(args...)) }
func (l grpcLog) Errorf(format string, args ...any)   { l.write(fmt.Sprintf(format, args...)) }

// Fatal ends the process, as that of gRPC's own logger does; gRPC calls it where it cannot continue.
func (grpcLog) Fatal(args ...any)                 { panic(fmt.Sprint(args...)) }
func (grpcLog) Fatalln(args ...any)               { panic(fmt.Sprintln(args...)) }
func (grpcLog) Fatalf(format string, args ...any) { panic(fmt.Sprintf(format, args...)) }

// V is the verbosity of gRPC's own lines; without it, gRPC formats none of them.
func (grpcLog) V(int) bool { return grpcTo.Load() != nil }
