package config

import (
	"math"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"
	logsapi "k8s.io/component-base/logs/api/v1"
)

// Logging has the stable fields of the kubelet's LoggingConfiguration.
type Logging struct {
	// Format is text or json; text by default.
	Format string `json:"format,omitempty"`
	// FlushFrequency is how often buffered lines are written, a duration or a number of nanoseconds;
	// 5s by default. Neither format buffers lines on standard error.
	FlushFrequency logsapi.TimeOrMetaDuration `json:"flushFrequency,omitempty"`
	// Verbosity is up to which level lines are written; 0 by default.
	Verbosity uint32 `json:"verbosity,omitempty"`
	// VModule has the verbosity of single source files, in place of Verbosity; for text only.
	VModule []LoggingOfFile `json:"vmodule,omitempty"`
}

// LoggingOfFile is the verbosity of the source files that match a pattern.
type LoggingOfFile struct {
	// FilePattern is a file's name without directory and .go, or a glob pattern for such names.
	FilePattern string `json:"filePattern,omitempty"`
	Verbosity   uint32 `json:"verbosity,omitempty"`
}

// Names of the flags of the log.
const (
	flagFormat    = "logging-format"
	flagFlush     = logsapi.LogFlushFreqFlagName
	flagVerbosity = "v"
	flagVModule   = "vmodule"
)

// Into sets in out what the file has. given reports whether a flag of this name was given: then the value
// in out stays, because it is the flag's. A nil Logging changes nothing.
func (l *Logging) Into(out *logsapi.LoggingConfiguration, given func(flag string) bool) {
	if l == nil {
		return
	}
	if !given(flagFormat) {
		out.Format = l.Format
	}
	if !given(flagFlush) {
		out.FlushFrequency = l.FlushFrequency
	}
	if !given(flagVerbosity) {
		out.Verbosity = logsapi.VerbosityLevel(l.Verbosity)
	}
	if !given(flagVModule) {
		out.VModule = nil
		for _, f := range l.VModule {
			out.VModule = append(out.VModule, logsapi.VModuleItem{FilePattern: f.FilePattern, Verbosity: logsapi.VerbosityLevel(f.Verbosity)})
		}
	}
}

func setLoggingDefaults(l *Logging) {
	if l == nil {
		return
	}
	orDefault(&l.Format, logsapi.DefaultLogFormat)
	orDefault(&l.FlushFrequency, logsapi.TimeOrMetaDuration{Duration: metav1.Duration{Duration: logsapi.LogFlushFreqDefault}, SerializeAsString: true})
}

func validateLogging(p *field.Path, l *Logging) field.ErrorList {
	if l == nil {
		return nil
	}
	errs := oneOf(p.Child("format"), l.Format, logsapi.DefaultLogFormat, logsapi.JSONLogFormat)
	if d := l.FlushFrequency.Duration.Duration; d < time.Millisecond {
		errs = append(errs, field.Invalid(p.Child("flushFrequency"), d.String(), "at least 1ms"))
	}
	atMost := func(p *field.Path, v uint32) {
		if v > math.MaxInt32 {
			errs = append(errs, field.Invalid(p, v, "at most 2147483647"))
		}
	}
	atMost(p.Child("verbosity"), l.Verbosity)
	if len(l.VModule) > 0 && l.Format == logsapi.JSONLogFormat {
		errs = append(errs, field.Forbidden(p.Child("vmodule"), "only with the format text"))
	}
	for i, f := range l.VModule {
		at := p.Child("vmodule").Index(i)
		if f.FilePattern == "" {
			errs = append(errs, field.Required(at.Child("filePattern"), "a file's name without .go, or a pattern for such names"))
		}
		if strings.ContainsAny(f.FilePattern, "=,") {
			errs = append(errs, field.Invalid(at.Child("filePattern"), f.FilePattern, "no name of a file has an equal sign or a comma"))
		}
		atMost(at.Child("verbosity"), f.Verbosity)
	}
	return errs
}
