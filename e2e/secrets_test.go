package e2e

import (
	"fmt"
	"strings"
	"syscall"
	"testing"

	"github.com/gobridge/gobridge/bridgetest"
)

// A password appears in no output, whatever happens.
func TestSecretsAppearInNoOutput(t *testing.T) {
	t.Parallel()
	const secret = `S3cr3t!$@`
	const marker = "S3cr3t"
	users := map[string]string{"bridge": secret}
	source := bridgetest.StartMosquitto(t, bridgetest.MosquittoConfig{Users: users})
	dest := bridgetest.StartMosquitto(t, bridgetest.MosquittoConfig{Users: users})
	clean := func(where, output string) {
		t.Helper()
		if i := strings.Index(output, marker); i >= 0 {
			t.Errorf("%s shows the password: %q", where, output[max(0, i-100):min(len(output), i+40)])
		}
	}
	login := func(d doc, password string) {
		d["username"], d["password"], d["allow_plaintext_credentials"] = "bridge", password, true
	}
	for _, format := range []string{"text", "json"} {
		cfg := between(t, source.URL(), dest.URL())
		cfg.log = doc{"level": "debug", "format": format}
		cfg.source["client_id"] = sourceID + "-" + format // each has a history of its own
		login(cfg.source, secret)
		login(cfg.dest, "${E2E_PASSWORD}")
		env := []string{"E2E_PASSWORD=" + secret}

		b := cfg.start(t, env...)
		b.waitReady("")
		dest.Restart()
		b.expectCounter(1, "mqtt_reconnects", `session_id="destination"`)
		b.waitReady("")
		for _, path := range []string{"/", "/readyz", "/metrics", "/api/v1/monitor/deephealth", "/api/v1/monitor/topology"} {
			status, body := b.get(path)
			if status != 200 {
				t.Errorf("GET %s answers %d", path, status)
			}
			clean("GET "+path, body)
		}
		b.Signal(syscall.SIGQUIT) // a dump of all goroutines
		b.Wait(patience)
		if !strings.Contains(b.Stderr(), "goroutine ") {
			t.Error("SIGQUIT gave no goroutine dump")
		}
		clean("the log ("+format+")", b.Stderr()+b.Stdout())

		b = cfg.start(t, env...)
		b.waitReady("")
		b.stop()
		clean("the log of a stop ("+format+")", b.Stderr()+b.Stdout())

		file := write(t, cfg.file())
		for _, args := range [][]string{{"config", "show", file}, {"validate", file}} {
			stdout, stderr, code := command(t, env, args...)
			if code != 0 {
				t.Errorf("%v: exit code %d: %s", args, code, stderr)
			}
			clean(fmt.Sprint(args), stdout+stderr)
		}

		// Refused: the password is wrong for this user.
		cfg.source["username"] = "nobody"
		b = cfg.start(t, env...)
		reason, _ := b.waitNotReady("source", patience)
		b.eventually(patience, "a refused connect", func() bool { return b.counter("mqtt_connect_failures", `session_id="source"`) > 0 })
		_, body := b.get("/readyz")
		clean("a refused login", b.Stderr()+reason+body)
		b.stop()
	}

	// In a URL it is refused, without being repeated; so is a broken config around it.
	broken := between(t, "tcp://bridge:"+secret+"@"+source.Addr(), dest.URL())
	unknown := between(t, source.URL(), dest.URL())
	login(unknown.source, secret)
	unknown.source["passwort"] = secret
	wrongType := between(t, source.URL(), dest.URL())
	wrongType.source["password"] = doc{"value": secret}
	half := between(t, source.URL(), dest.URL())
	half.source["username"], half.source["password"] = "bridge", secret // in clear text without permission
	for name, cfg := range map[string]*config{"URL": broken, "unknown key": unknown, "wrong type": wrongType, "clear text": half} {
		file := write(t, cfg.file())
		for _, args := range [][]string{{"validate", file}, {"config", "show", file}, {"run", "-c", file}} {
			stdout, stderr, code := command(t, nil, args...)
			if code != 1 {
				t.Errorf("%s: %v: exit code %d, want 1", name, args[0], code)
			}
			clean(name+": "+args[0], stdout+stderr)
		}
	}
}
