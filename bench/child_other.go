//go:build !linux

package main

import "syscall"

// childAttributes is empty where the kernel cannot tie a child to its parent.
func childAttributes() *syscall.SysProcAttr { return nil }
