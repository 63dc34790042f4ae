package main

import "syscall"

// childAttributes lets the kernel kill a child whose parent died without stopping it.
func childAttributes() *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
}
