//go:build unix

package bridgetest

import "syscall"

// freeze stops a process in its tracks, thaw lets it go on.
func freeze(p *Process) { p.Signal(syscall.SIGSTOP) }
func thaw(p *Process)   { p.Signal(syscall.SIGCONT) }
