// Package applets lists the commands of the toolbox image: the names that the registry links in
// /bin, and that the program answers to.
package applets

// Names is sorted.
var Names = []string{
	"alloc", "append", "burn", "cat", "chmod", "chown", "cp", "count", "date", "dd", "df", "echo", "env",
	"false", "fallocate", "grep", "head", "hostname", "id", "kill", "ln", "ls", "mkdir", "mkfifo", "mount", "mv", "nc", "nslookup",
	"printf", "ps", "pwd", "readlink", "rm", "rmdir", "seq", "sh", "sha256sum", "sleep", "sort", "stat", "sync", "tail", "tee",
	"test", "touch", "true", "tty", "uname", "wc", "wget", "whoami", "yes",
}
