package bridgetest

import "syscall"

// childAttributes lets the kernel kill a child whose test process died without
// running its cleanups (a test timeout, a kill -9).
func childAttributes() *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
}
