// conv2d

#include "po_device.h"

PO_KERNEL void __launch_bounds__(64) conv2d_0(const float *__restrict__ x, const float *__restrict__ f, const float *__restrict__ b, float *out)
{
    const int n = (int)blockIdx.z;
    const int o = (int)blockIdx.y;
    const int h_block = (int)blockIdx.x * 2;  // h block
    const int w_block = 0;  // w block
    const int h = h_block + (int)threadIdx.y;
    const int w = w_block + (int)threadIdx.x;
    if (w < 24) {
        float y;
        y = 0.0f;
        for (int c = 0; c < 3; ++c) {
            for (int r = 0; r < 3; ++r) {
                for (int s = 0; s < 3; ++s) {
                    y += ((h + r >= 1 && h + r < 21) && (s + w >= 1 && s + w < 25) ? x[n * 1440 + c * 480 + (h + r - 1) * 24 + s + w - 1] : 0.0f) * f[o * 27 + c * 9 + r * 3 + s];
                }
            }
        }
        out[n * 3840 + o * 480 + h * 24 + w] = po_max_nan(y + b[o], 0.0f);
    }
}
PO_ENTRY(conv2d_0)
