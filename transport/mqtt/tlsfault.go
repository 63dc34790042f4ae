package mqtt

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net"
	"reflect"
	"syscall"
	"time"

	"github.com/gobridge/gobridge"
)

// handshakeError is a TLS handshake that failed.
type handshakeError struct {
	address string
	err     error
}

func (e *handshakeError) Error() string {
	return fmt.Sprintf("tls handshake with %s: %v", e.address, e.err)
}
func (e *handshakeError) Unwrap() error { return e.err }

// alert is a TLS alert of the peer (RFC 8446, 6).
type alert uint8

// The alerts that tell the causes apart.
const (
	alertHandshakeFailure      alert = 40
	alertBadCertificate        alert = 42
	alertUnsupportedCert       alert = 43
	alertCertificateRevoked    alert = 44
	alertCertificateExpired    alert = 45
	alertCertificateUnknown    alert = 46
	alertUnknownCA             alert = 48
	alertAccessDenied          alert = 49
	alertProtocolVersion       alert = 70
	alertInsufficientSecurity  alert = 71
	alertUnrecognizedName      alert = 112
	alertCertificateRequired   alert = 116
	alertNoApplicationProtocol alert = 120
)

// alertOf finds the alert that the peer sent. Package tls keeps its type to itself; it
// is a number of that package inside a *net.OpError that says "remote error".
func alertOf(err error) (alert, bool) {
	op, ok := errors.AsType[*net.OpError](err)
	if !ok || op.Op != "remote error" || op.Err == nil {
		return 0, false
	}
	v := reflect.ValueOf(op.Err)
	if v.Kind() != reflect.Uint8 || v.Type().PkgPath() != "crypto/tls" {
		return 0, false
	}
	return alert(v.Uint()), true
}

// tlsFault classifies what is wrong between bridge and broker in TLS, nil where it is
// nothing of that kind. Each is an outage: no message is at fault. What only the
// bridge's own side can mend is permanent.
func tlsFault(err error) *gobridge.Error {
	fault := func(op, hint string) *gobridge.Error {
		return &gobridge.Error{Code: gobridge.CodeUnavailable, Outage: true, Op: op, Hint: hint, Err: err}
	}
	if _, verify := errors.AsType[*tls.CertificateVerificationError](err); verify {
		return certificateFault(err, fault)
	}
	if _, other := errors.AsType[tls.RecordHeaderError](err); other {
		return fault("broker does not speak TLS on this port", "use the TLS port, or tcp:// without TLS")
	}
	if a, ok := alertOf(err); ok {
		return alertFault(a, fault)
	}
	if _, handshake := errors.AsType[*handshakeError](err); !handshake {
		return nil
	}
	if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) || errors.Is(err, syscall.ECONNRESET) {
		return fault("broker closed the connection during the TLS handshake", "is this its TLS port? it may also want a client certificate")
	}
	if network, ok := errors.AsType[net.Error](err); ok && network.Timeout() {
		e := fault("no answer to the TLS handshake", "is this the broker's TLS port?")
		e.Code = gobridge.CodeTimeout
		return e
	}
	return fault("TLS handshake did not work", "compare tls.min_version and the broker's TLS settings")
}

// certificateFault is a certificate of the broker that is not accepted.
func certificateFault(err error, fault func(op, hint string) *gobridge.Error) *gobridge.Error {
	if _, ok := errors.AsType[x509.UnknownAuthorityError](err); ok {
		return fault("broker's certificate is signed by an authority that is not trusted", "name the authority in tls.ca_cert_file, or as ca in the credential")
	}
	if _, ok := errors.AsType[x509.HostnameError](err); ok {
		return fault("broker's certificate is for another host name", "use a name of the certificate in broker_url, or write it as tls.server_name")
	}
	if invalid, ok := errors.AsType[x509.CertificateInvalidError](err); ok && invalid.Reason == x509.Expired {
		if invalid.Cert != nil && time.Now().Before(invalid.Cert.NotBefore) {
			return fault("broker's certificate is not valid yet", "check the clock of this machine")
		}
		return fault("broker's certificate has expired", "renew it at the broker, and check the clock of this machine")
	}
	return fault("broker's certificate is not accepted", "check tls.ca_cert_file and tls.server_name against it")
}

// alertFault is an alert of the broker.
func alertFault(a alert, fault func(op, hint string) *gobridge.Error) *gobridge.Error {
	permanent := func(code gobridge.Code, op, hint string) *gobridge.Error {
		e := fault(op, hint)
		e.Code, e.Class = code, gobridge.ClassPermanent
		return e
	}
	switch a {
	case alertCertificateRequired:
		return permanent(gobridge.CodeNotAuthorized, "broker requires a client certificate", "set tls.cert_file and tls.key_file, or cert and key in the credential")
	case alertBadCertificate, alertUnsupportedCert, alertCertificateRevoked, alertCertificateExpired, alertCertificateUnknown, alertUnknownCA, alertAccessDenied:
		return permanent(gobridge.CodeNotAuthorized, "broker does not accept the client certificate, or misses one", "check cert and key, and the authorities that the broker trusts for clients")
	case alertProtocolVersion, alertInsufficientSecurity:
		return permanent(gobridge.CodeVersionMismatch, "broker and bridge have no TLS version in common", "lower tls.min_version, or raise the broker's")
	case alertUnrecognizedName:
		return fault("broker does not know the server name", "write the name that it expects as tls.server_name")
	case alertNoApplicationProtocol:
		return permanent(gobridge.CodeInvalidConfig, "broker and bridge have no application protocol in common", "check tls.alpn")
	case alertHandshakeFailure:
		return fault("broker refused the TLS handshake", "it may want a client certificate, or have no cipher in common")
	}
	return fault("broker ended TLS with an alert", "see the broker's log")
}
